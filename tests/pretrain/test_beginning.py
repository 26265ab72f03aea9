"""What a new run says before it begins."""

from pretrain.export.tokenizer import convert
from tests.pretrain.small_run import run_training, small_config


def test_a_new_run_says_once_that_its_vocabulary_cannot_be_exported(small_records, tmp_path, monkeypatch):
  monkeypatch.setattr(convert, "warning", lambda directory: f"no export of {directory}")
  config, lines = small_config("mlm", small_records, {"train.total_steps": 3}), []
  for _ in range(2):
    assert run_training(config, tmp_path / "w", say=lines.append) == 0
  assert lines.count(f"no export of {small_records / 'vocabulary'}") == 1
