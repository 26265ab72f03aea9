"""Workdirs, checkpoints and records in buckets: continued elsewhere bit by bit, checked, one owner."""

import pytest

from data.buckets import owner
from data.errors import DataError
from pretrain.checkpoints import bucket_steps, bucket_workdir, checkpoint, resume
from pretrain.checkpoints.saved_model import open_model
from pretrain.mesh import trees
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests import buckets
from tests.pretrain import small_run

KEPT = bucket_workdir.Kept(2, ())


class _Crash(BaseException):
  pass


def test_a_run_that_fails_goes_on_elsewhere_as_if_it_had_been_left_in_peace(
  here, small_records, finished, tmp_path, monkeypatch
):
  address = "memory://runs/a"
  config = small_run.small_config("mlm", small_records, {"train.checkpoint_steps": (1,)})

  def crash(line):
    if line.startswith("held-out at step 4"):
      raise _Crash

  with buckets.machine(tmp_path / "other"), pytest.raises(_Crash):
    small_run.run_training(config, address, say=crash)
  assert set(bucket_steps.by_step(buckets.names(address))) <= {1, 2, 4}
  monkeypatch.setattr(owner, "SILENCE", 0.1)
  assert small_run.run_training(config, address) == 0
  found = buckets.fetched(address, tmp_path / "found")
  assert small_run.metric_lines(found) == small_run.metric_lines(finished)
  small_run.assert_same_params(small_run.saved_params(found), small_run.saved_params(finished))
  assert sorted(path.name for path in (found / "checkpoints").iterdir()) == ["1", "4", "6"]
  assert not (found / "lock").exists() and not (found / "owner.json").exists()


def test_what_is_damaged_in_the_bucket_is_set_aside_there_and_old_checkpoints_go(here, finished):
  address = "memory://damaged/run"
  buckets.put_folder(address, finished)
  (name, *_) = sorted(name for name in buckets.names(address) if name.startswith("checkpoints/6/params/d/"))
  buckets.put(address, {name: b"?"})
  with bucket_workdir.opened(address, bucket_workdir.Kept(1, ())) as workdir:
    assert resume.newest_good_step(workdir) == 4
  there = {name.split("/")[1] for name in buckets.names(address) if name.startswith("checkpoints/")}
  assert there == {"4", "6.damaged_1"}


def test_one_process_owns_a_place(here, monkeypatch):
  for name, seconds in (("BEAT", 0.1), ("_LOOK", 0.05), ("SILENCE", 1.0)):  # a minute, else
    monkeypatch.setattr(owner, name, seconds)
  owned, second = "memory://owned/run", pytest.raises(DataError, match="another run is active in")
  with bucket_workdir.opened(owned, KEPT):
    with buckets.machine(here / "other"), second, bucket_workdir.opened(owned, KEPT):
      pass
    assert "owner.json" in buckets.names(owned)


def test_a_checkpoint_is_fetched_alone_and_checked(here, finished, moved):
  address = "memory://runs/finished"
  buckets.put_folder(address, finished)
  saved = open_model(address)
  assert saved.path.name == "6" and not {name for name in moved if name.startswith("checkpoints/1/")}
  assert trees.digest(saved.params) == trees.digest(open_model(finished).params)
  assert bucket_steps.step_path(f"{address}/checkpoints/1").name == "1"
  with pytest.raises(DataError, match=f"^no checkpoint of step 5 in {address}; there are 1, 4, 6$"):
    bucket_steps.step_path(address, 5)
  name = next(name for name in moved if name.startswith("checkpoints/6/params/d/"))
  buckets.put(address, {name: b"?"})
  with pytest.raises(DataError, match=f"^checkpoint={address}: "):
    open_model(address)
  buckets.remove(f"{address}/checkpoints/6/{checkpoint.COMMITTED}")
  assert bucket_steps.step_path(address).name == "4"


def test_records_of_buckets_are_those_of_their_manifest(here, small_records, more_records):
  names = ["memory://prepared/one:a", "memory://prepared/other"]
  for address, directory in zip(names, (small_records, more_records)):
    buckets.put_folder(address, directory)
  far = reading_settings(small_run.mixture_config(f"{names[0]}:7,{names[1]}:3"))
  near = reading_settings(small_run.mixture_config(f"{small_records}:7,{more_records}:3"))
  here, there = prepared.open(far), prepared.open(near)
  assert list(here.train.sources) == ["one_a", "other"]
  assert (here.train.batch(3, 8) == there.train.batch(3, 8)).all()  # the place of a source changes nothing
