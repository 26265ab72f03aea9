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
  (tmp_path / "phase_2").mkdir()  # of an earlier version
  with pytest.raises(DataError, match=r"\n  --workdir=NEW --config.train.init_from=.*phase_2"):
    workdir.refuse_lost_checkpoints(tmp_path)
