"""What a new run says before it begins."""

import json
import types

import pytest

from data import errors, manifest
from pretrain import train
from pretrain.checkpoints import warm_start
from pretrain.export.tokenizer import convert
from pretrain.pod.peers import Peers
from pretrain.start import beginning
from tests.pretrain.small_run import run_training, small_config

FED = {"data.feed": "seqio", "data.source": "seqio:one"}


def test_a_new_run_says_once_that_its_vocabulary_cannot_be_exported(small_records, tmp_path, monkeypatch):
  monkeypatch.setattr(convert, "warning", lambda directory: f"no export of {directory}")
  config, lines = small_config("mlm", small_records, {"train.total_steps": 3}), []
  for _ in range(2):
    assert run_training(config, tmp_path / "w", say=lines.append) == 0
  assert lines.count(f"no export of {small_records / 'vocabulary'}") == 1


def test_a_run_on_segments_says_that_not_all_of_a_row_are_contrasted(segment_records, tmp_path):
  fields = {"data.packing": "segments", "objectives.scl.max_segments": 1, "train.total_steps": 3}
  most = manifest.read(segment_records).counts[manifest.MOST_SEGMENTS]
  said = []
  config = small_config("coco_lm", segment_records, fields)
  assert run_training(config, tmp_path / "w", say=said.append) == 0
  assert [line for line in said if f"a row has up to {most} texts, of which the first are contrasted" in line]
  lines = [json.loads(line) for line in (tmp_path / "w" / "metrics.jsonl").read_text().splitlines()]
  shares = [line["eval/scl_segments_dropped"] for line in lines if "eval/scl_segments_dropped" in line]
  assert shares and all(0 < share < 1 for share in shares)


def test_a_feed_ends_where_the_run_cannot_begin(monkeypatch, tmp_path):
  closed = []
  records = types.SimpleNamespace(
    close=lambda: closed.append(1), digests={}, directory="", tokens_for=lambda _: None, vocabulary="",
    description={},
  )  # fmt: skip

  def fail(*_, **__):
    raise errors.DataError("others")

  monkeypatch.setattr(beginning.prepared, "ensure_records", lambda *_, **__: "")
  monkeypatch.setattr(beginning.prepared, "open", lambda _: records)
  with monkeypatch.context() as differing:
    differ = lambda self, what, *_, **__: fail() if what == "the prepared records" else None  # noqa: E731
    differing.setattr(Peers, "compare", differ)
    with pytest.raises(errors.DataError, match="others"):
      config = small_config("mlm", "", FED)
      beginning.open_records(config, warm_start.origins(config.to_dict()), str(tmp_path), False)
  assert closed == [1]
  monkeypatch.setattr(train, "make_run", fail)
  with pytest.raises(errors.DataError, match="others"):
    train.train(small_config("mlm", "", FED), str(tmp_path / "run"))
  assert closed == [1, 1]
