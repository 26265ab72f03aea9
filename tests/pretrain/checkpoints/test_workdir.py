"""Files of a workdir, on a disk and at gs://; checkpoints and records that are fetched from an address."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from subprocess import PIPE

import pytest

from data import manifest, vocabulary
from data.errors import ConfigError, DataError, StorageError
from pretrain.checkpoints import checkpoint, workdir
from pretrain.checkpoints.saved_model import open_model
from pretrain.mesh import trees
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests import buckets
from tests.pretrain import small_run
from tests.pretrain.small_run import VOCAB_SIZE, small_config


def _begin(place, config, records, **changes):
  described = dataclasses.replace(manifest.read(records).vocabulary, **changes)
  workdir.begin(str(place), config.to_dict(), str(records / "vocabulary"), described)


@pytest.fixture
def config(small_records):
  return small_config("mlm", small_records)


def test_a_run_keeps_its_config_and_vocabulary(config, small_records, tmp_path):
  _begin(tmp_path, config, small_records)
  kept = tmp_path / "vocabulary"
  assert json.loads((tmp_path / "config.json").read_text()) == json.loads(json.dumps(config.to_dict()))
  assert vocabulary.load(kept).digest == vocabulary.load(small_records / "vocabulary").digest
  (kept / "mine").touch()
  config.train.total_steps += 1
  _begin(tmp_path, config, small_records)
  assert (kept / "mine").exists()  # the same vocabulary is not copied again
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["train"]["total_steps"] == config.train.total_steps
  # That of an earlier run that saved nothing is replaced.
  (kept / "vocabulary.json").write_text("{}")
  _begin(tmp_path, config, small_records)
  assert vocabulary.load(kept).size == VOCAB_SIZE
  assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "vocabulary"]


def test_a_vocabulary_of_other_records_or_of_the_users_own_is_refused(config, small_records, tmp_path):
  described = manifest.read(small_records).vocabulary
  ids = described.special_ids
  swapped = {**ids, "mask": ids["unk"], "unk": ids["mask"]}
  for changes in ({"special_ids": swapped}, {"size": described.size + 1}, {"digest": "0" * 64}):
    with pytest.raises(DataError, match="vocabulary"):
      _begin(tmp_path, config, small_records, **changes)
  (tmp_path / "file").touch()
  with pytest.raises(StorageError, match="file/vocabulary"):
    _begin(tmp_path / "file", config, small_records)
  (tmp_path / "file").unlink()
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "vocabulary.json").write_text("{}")
  with pytest.raises(ConfigError, match="no run put it there"):
    _begin(tmp_path, config, small_records)
  assert [path.name for path in tmp_path.rglob("*")] == ["vocabulary", "vocabulary.json"]


def test_leftovers_of_killed_starts_go_and_files_of_others_stay(config, small_records, tmp_path):
  (tmp_path / "checkpoints").mkdir()
  leftovers = [tmp_path / name for name in ("config.json.12.part", "metrics.jsonl.9.part", ".writable.abc")]
  leftovers += [tmp_path / "checkpoints" / ".writable.x"]
  mine = tmp_path / "notes.part"
  for path in (*leftovers, mine):
    path.touch()
  for name in (".vocabulary.ab.part", ".vocabulary.ab.old"):
    (tmp_path / name).mkdir()
  _begin(tmp_path, config, small_records)
  assert mine.exists() and not any(path.exists() for path in leftovers)
  assert not list(tmp_path.glob(".vocabulary*"))


def test_a_second_run_is_refused_while_the_first_is_at_work_and_a_dead_owner_is_no_hindrance(tmp_path):
  place = tmp_path / "runs" / "a"
  program = f"from pretrain.checkpoints.workdir import owned\nwith owned({str(place)!r}): "
  hold = program + "print('has it', flush=True); input()"
  with subprocess.Popen([sys.executable, "-c", hold], stdout=PIPE, stdin=PIPE, text=True) as owner:
    assert owner.stdout.readline() == "has it\n"
    busy = rf"another run is active in .*a \(process {owner.pid} on {socket.gethostname()}"
    with pytest.raises(DataError, match=busy), workdir.owned(place):
      pass
    owner.kill()
  with workdir.owned(place):
    assert str(os.getpid()) in (place / "lock").read_text()
  assert not list(place.iterdir())


def test_what_a_failed_start_made_goes_again(tmp_path):
  with pytest.raises(ConfigError), workdir.owned(tmp_path / "runs" / "a"):
    raise ConfigError("no")
  assert not list(tmp_path.iterdir())


class _Crash(BaseException):
  pass


@pytest.mark.nightly
def test_a_run_at_gs_that_fails_goes_on_elsewhere_as_if_it_had_been_left_in_peace(
  here, small_records, finished, tmp_path, monkeypatch
):
  config = small_run.small_config("mlm", small_records, {"train.checkpoint_steps": (1,)})

  def crash(line):
    if line.startswith("held-out at step 4"):
      monkeypatch.setattr(workdir.Workdir, "send", lambda self: None)  # a killed run sends nothing at its end
      raise _Crash

  with buckets.gcs_server() as bucket:
    address = f"{bucket}/runs/a"
    with pytest.raises(_Crash):
      small_run.run_training(config, address, say=crash)
    monkeypatch.undo()
    assert set(workdir.by_step(buckets.names(address))) == {1, 2}
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
  assert workdir.step_path(f"{address}/checkpoints/1").name == "1"
  with pytest.raises(DataError, match=f"^no checkpoint of step 5 in {address}; there are 1, 4, 6$"):
    workdir.step_path(address, 5)
  name = next(name for name in moved if name.startswith("checkpoints/6/params/d/"))
  buckets.put(address, {name: b"?"})
  with pytest.raises(DataError, match=f"^checkpoint={address}: {name} is not the file that was written"):
    open_model(address)
  buckets.remove(f"{address}/checkpoints/6/{checkpoint.COMMITTED}")
  assert workdir.step_path(address).name == "4"


def test_records_at_addresses_are_those_of_their_manifest(here, small_records, more_records):
  names = ["memory://prepared/one:a", "memory://prepared/other"]
  for address, directory in zip(names, (small_records, more_records)):
    buckets.put_folder(address, directory)
  far = reading_settings(small_run.mixture_config(f"{names[0]}:7,{names[1]}:3"))
  near = reading_settings(small_run.mixture_config(f"{small_records}:7,{more_records}:3"))
  here, there = prepared.open(far), prepared.open(near)
  assert list(here.train.sources) == ["one_a", "other"]
  assert (here.train.batch(3, 8) == there.train.batch(3, 8)).all()  # the place of a source changes nothing
