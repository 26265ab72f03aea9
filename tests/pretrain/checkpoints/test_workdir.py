"""What a run keeps beside its checkpoints, and what it leaves alone."""

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
from pretrain.checkpoints import workdir
from tests.pretrain.small_run import VOCAB_SIZE, small_config


def begin(place, config, records):
  workdir.begin(place, config.to_dict(), records / "vocabulary", manifest.read(records).vocabulary)


@pytest.fixture
def config(small_records):
  return small_config("mlm", small_records)


def test_a_run_keeps_its_config_and_vocabulary(config, small_records, tmp_path):
  begin(tmp_path, config, small_records)
  kept = tmp_path / "vocabulary"
  assert json.loads((tmp_path / "config.json").read_text()) == json.loads(json.dumps(config.to_dict()))
  assert vocabulary.load(kept).digest == vocabulary.load(small_records / "vocabulary").digest
  (kept / "mine").touch()
  config.train.total_steps += 1
  begin(tmp_path, config, small_records)
  assert (kept / "mine").exists()  # the same vocabulary is not copied again
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["train"]["total_steps"] == config.train.total_steps


def test_ids_that_are_not_those_of_the_vocabulary_are_refused(config, small_records, tmp_path):
  described, fields = manifest.read(small_records).vocabulary, config.to_dict()
  ids = described.special_ids
  swapped = {**ids, "mask": ids["unk"], "unk": ids["mask"]}
  for other in ({"special_ids": swapped}, {"size": described.size + 1}):
    with pytest.raises(DataError, match="has another size or other special ids than"):
      workdir.begin(tmp_path, fields, small_records / "vocabulary", dataclasses.replace(described, **other))
  assert not (tmp_path / "config.json").exists()


def test_a_vocabulary_of_an_earlier_run_that_saved_nothing_is_replaced(config, small_records, tmp_path):
  begin(tmp_path, config, small_records)
  (tmp_path / "vocabulary" / "vocabulary.json").write_text("{}")
  begin(tmp_path, config, small_records)
  assert vocabulary.load(tmp_path / "vocabulary").size == VOCAB_SIZE
  assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "vocabulary"]


def test_a_vocabulary_of_the_users_own_is_left_alone(config, small_records, tmp_path):
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "vocabulary.json").write_text("{}")
  with pytest.raises(ConfigError, match=r"vocabulary is not .*, and no run put it there; move it away"):
    begin(tmp_path, config, small_records)
  assert [path.name for path in tmp_path.rglob("*")] == ["vocabulary", "vocabulary.json"]


def test_a_place_that_cannot_be_written_is_named(config, small_records, tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(StorageError, match=r"file/vocabulary: cannot be written"):
    begin(tmp_path / "file", config, small_records)


def test_a_second_run_is_refused_while_the_first_is_at_work_and_a_dead_owner_is_no_hindrance(tmp_path):
  place = tmp_path / "runs" / "a"
  program = f"from pretrain.checkpoints.workdir import owned\nwith owned({str(place)!r}): "
  hold = program + "print('has it', flush=True); input()"
  with subprocess.Popen([sys.executable, "-c", hold], stdout=PIPE, stdin=PIPE, text=True) as owner:
    assert owner.stdout.readline() == "has it\n"
    busy = rf"another run is active in .*a \(process {owner.pid} on "
    with pytest.raises(DataError, match=busy) as caught, workdir.owned(place):
      pass
    assert socket.gethostname() in str(caught.value) and " since 20" in str(caught.value)
    owner.kill()
  with workdir.owned(place):
    assert str(os.getpid()) in (place / "lock").read_text()
  assert not list(place.iterdir())


def test_a_workdir_with_an_old_lock_is_not_that_of_process_0(tmp_path):
  (tmp_path / "lock").write_text("process 7 on another since 2026-01-01 00:00:00\n")  # of a killed run
  with workdir.owned(tmp_path / "shared"):
    owner = workdir.owner(tmp_path / "shared")
    workdir.refuse_unshared(tmp_path / "shared", owner)
    with pytest.raises(DataError, match="is not the directory of process 0"):
      workdir.refuse_unshared(tmp_path, owner)


def test_what_a_failed_start_made_goes_again(tmp_path):
  with pytest.raises(ConfigError), workdir.owned(tmp_path / "runs" / "a"):
    raise ConfigError("no")
  assert not list(tmp_path.iterdir())
  (tmp_path / "file").touch()
  with pytest.raises(StorageError, match=r"--workdir=.*file/a: "), workdir.owned(tmp_path / "file" / "a"):
    pass


def test_leftovers_of_killed_starts_go_and_a_vocabulary_must_be_that_of_the_records(small_records, tmp_path):
  config = small_config("mlm", small_records)
  (tmp_path / "checkpoints").mkdir()
  leftovers = [tmp_path / name for name in ("config.json.12.part", "metrics.jsonl.9.part", ".writable.abc")]
  leftovers += [tmp_path / "checkpoints" / ".writable.x"]
  mine = tmp_path / "notes.part"
  for path in (*leftovers, mine):
    path.touch()
  (tmp_path / ".vocabulary.ab.part").mkdir()
  described = manifest.read(small_records).vocabulary
  fields, words = config.to_dict(), str(small_records / "vocabulary")
  workdir.begin(str(tmp_path), fields, words, described)
  assert mine.exists() and not any(path.exists() for path in leftovers)
  assert not list(tmp_path.glob(".vocabulary*"))
  with pytest.raises(DataError, match=r"is not the vocabulary of the records beside it"):
    workdir.begin(str(tmp_path), fields, words, dataclasses.replace(described, digest="0" * 64))


def test_a_phase_of_an_earlier_version_is_not_started_over(tmp_path):
  (tmp_path / "phase_2").mkdir()
  with pytest.raises(
    DataError, match=r"phase_2 has a finished run.*\n  --workdir=NEW --config.train.init_from=.*phase_2"
  ):
    workdir.refuse_lost_checkpoints(tmp_path)
