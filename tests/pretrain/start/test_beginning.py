"""What a new run says before it begins, and what it ends if it cannot."""

import json
import types

import pytest

from data import errors, manifest
from pretrain import train
from pretrain.reading.batches import Skip
from pretrain.start import beginning
from pretrain.start.beginning import Start
from tests.pretrain.small_run import run_training, small_config


def test_a_run_on_segments_says_that_not_all_of_a_row_are_contrasted(segment_records, tmp_path):
  fields = {"data.packing": "segments", "objectives.scl.max_segments": 1, "train.total_steps": 3}
  most = manifest.read(segment_records).counts[manifest.MOST_SEGMENTS]
  config, said = small_config("coco_lm", segment_records, fields), []
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
  monkeypatch.setattr(train, "make_run", fail)
  config = small_config("mlm", "", {"data.feed": "seqio", "data.source": "seqio:one"})
  with pytest.raises(errors.DataError, match="others"):
    train.train(config, str(tmp_path / "run"))
  assert closed == [1]


def test_a_roll_back_keeps_the_skips_that_its_checkpoint_does_not_list():
  known = (Skip(4, 3, 7, 9.0, 8.0), Skip(8, 2, 10, 9.0, 8.0))
  start = Start(0, {"a": 1}, {"b": 2}, known).rolled_back(Skip(8, 1, 9, 9.0, 8.0))
  assert start == Start(8, None, {"b": 2}, (known[1], Skip(8, 1, 9, 9.0, 8.0)))
