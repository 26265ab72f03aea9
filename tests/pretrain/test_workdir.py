"""What a run keeps beside its checkpoints, and what it leaves alone."""

import json

import pytest

from data import vocabulary
from data.errors import ConfigError, StorageError
from pretrain import workdir
from tests.pretrain.small_run import VOCAB_SIZE, small_config


@pytest.fixture
def config(small_records):
  return small_config("mlm", small_records)


def test_a_run_keeps_its_config_and_vocabulary(config, small_records, tmp_path):
  workdir.begin(tmp_path, config, small_records)
  kept = tmp_path / "vocabulary"
  assert json.loads((tmp_path / "config.json").read_text()) == json.loads(json.dumps(config.to_dict()))
  assert vocabulary.load(kept).digest == vocabulary.load(small_records / "vocabulary").digest
  (kept / "mine").touch()
  config.train.total_steps += 1
  workdir.begin(tmp_path, config, small_records)
  assert (kept / "mine").exists()  # the same vocabulary is not copied again
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["train"]["total_steps"] == config.train.total_steps


def test_a_vocabulary_of_an_earlier_run_that_saved_nothing_is_replaced(config, small_records, tmp_path):
  workdir.begin(tmp_path, config, small_records)
  (tmp_path / "vocabulary" / "vocabulary.json").write_text("{}")
  workdir.begin(tmp_path, config, small_records)
  assert vocabulary.load(tmp_path / "vocabulary").size == VOCAB_SIZE
  assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "vocabulary"]


def test_a_vocabulary_of_the_users_own_is_left_alone(config, small_records, tmp_path):
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "vocabulary.json").write_text("{}")
  with pytest.raises(ConfigError, match=r"vocabulary is there, .* was not put there by a run; move it away"):
    workdir.begin(tmp_path, config, small_records)
  assert [path.name for path in tmp_path.rglob("*")] == ["vocabulary", "vocabulary.json"]


def test_a_place_that_cannot_be_written_is_named(config, small_records, tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(StorageError, match=r"file/vocabulary: cannot be written"):
    workdir.begin(tmp_path / "file", config, small_records)
