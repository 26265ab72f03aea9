"""Checkpoints and records at addresses are checked; a run at gs:// goes on elsewhere bit by bit."""

import pytest

from data.errors import DataError
from pretrain.checkpoints import addresses, checkpoint
from pretrain.checkpoints.saved_model import open_model
from pretrain.mesh import trees
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests import buckets
from tests.pretrain import small_run


class _Crash(BaseException):
  pass


@pytest.mark.nightly
def test_a_run_at_gs_that_fails_goes_on_elsewhere_as_if_it_had_been_left_in_peace(
  here, small_records, finished, tmp_path, monkeypatch
):
  config = small_run.small_config("mlm", small_records, {"train.checkpoint_steps": (1,)})

  def crash(line):
    if line.startswith("held-out at step 4"):
      monkeypatch.setattr(
        addresses.Workdir, "send", lambda self: None
      )  # a killed run sends nothing at its end
      raise _Crash

  with buckets.gcs_server() as bucket:
    address = f"{bucket}/runs/a"
    with pytest.raises(_Crash):
      small_run.run_training(config, address, say=crash)
    monkeypatch.undo()
    assert set(addresses.by_step(buckets.names(address))) == {1, 2}
    buckets.remove(f"{address}/checkpoints/2/{checkpoint.COMMITTED}")  # killed before this one was complete
    assert small_run.run_training(config, address) == 0
    found = buckets.fetched_folder(address, tmp_path / "found")
    assert small_run.metric_lines(found) == small_run.metric_lines(finished)
    small_run.assert_same_params(small_run.saved_params(found), small_run.saved_params(finished))
    assert sorted(path.name for path in (found / "checkpoints").iterdir()) == ["1", "4", "6"]
    assert {"config.json", "has_saved", "metrics.jsonl", "vocabulary/vocabulary.json"} <= buckets.names(
      address
    )
    assert not (found / "lock").exists()
    small_run.assert_same_params(
      dict(trees.by_path(open_model(address).params)), dict(trees.by_path(open_model(finished).params))
    )

    name = next(name for name in sorted(buckets.names(address)) if name.startswith("checkpoints/6/params/d/"))
    buckets.put(address, {name: b"?"})
    said: list[str] = []
    assert small_run.run_training(config, address, say=said.append) == 0
    assert "checkpoints/6 is damaged" in "\n".join(said)
    steps = {name.split("/")[1] for name in buckets.names(address) if name.startswith("checkpoints/")}
    assert steps == {"1", "4", "6", "6.damaged_1"}
    again = buckets.fetched_folder(address, tmp_path / "again")
    small_run.assert_same_params(small_run.saved_params(again), small_run.saved_params(finished))


def test_a_checkpoint_is_fetched_alone_and_checked(here, finished, moved):
  address = "memory://runs/finished"
  buckets.put_folder(address, finished)
  saved = open_model(address)
  assert saved.path.name == "6" and not {name for name in moved if name.startswith("checkpoints/1/")}
  assert trees.digest(saved.params) == trees.digest(open_model(finished).params)
  assert addresses.step_path(f"{address}/checkpoints/1").name == "1"
  with pytest.raises(DataError, match=f"^no checkpoint of step 5 in {address}; there are 1, 4, 6$"):
    addresses.step_path(address, 5)
  name = next(name for name in moved if name.startswith("checkpoints/6/params/d/"))
  buckets.put(address, {name: b"?"})
  with pytest.raises(DataError, match=f"^checkpoint={address}: {name} is not the file that was written"):
    open_model(address)
  buckets.remove(f"{address}/checkpoints/6/{checkpoint.COMMITTED}")
  assert addresses.step_path(address).name == "4"


def test_records_at_addresses_are_those_of_their_manifest(here, small_records, more_records):
  names = ["memory://prepared/one:a", "memory://prepared/other"]
  for address, directory in zip(names, (small_records, more_records)):
    buckets.put_folder(address, directory)
  far = reading_settings(small_run.mixture_config(f"{names[0]}:7,{names[1]}:3"))
  near = reading_settings(small_run.mixture_config(f"{small_records}:7,{more_records}:3"))
  here, there = prepared.open(far), prepared.open(near)
  assert list(here.train.sources) == ["one_a", "other"]
  assert (here.train.batch(3, 8) == there.train.batch(3, 8)).all()  # the place of a source changes nothing
