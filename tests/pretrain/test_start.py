"""The start of a run, and when its listeners are called, also after a stop, a resume and a roll-back."""

import functools
import json
import os
import signal
import types

import numpy as np
import pytest

from data import errors, manifest
from data.records import PackedRecords
from pretrain import start, train
from pretrain.listener import Listener
from pretrain.reading.batches import Skip
from pretrain.start import Start
from tests.pretrain.small_run import SharedRun, run_training, small_config

FIELDS = {"train.total_steps": 5, "train.checkpoint_every": 4, "train.eval_every": 10, "train.log_every": 10}
WHOLE = [["after", 0], ["seen", 1], ["seen", 2], ["after", 2], ["seen", 3], ["seen", 4], ["after", 4]]
WHOLE += [["saving", 4], ["seen", 5], ["after", 5], ["saving", 5], ["end", 0]]


class Toy(Listener):
  """Passes [moment, step] to `note`."""

  every = 2

  def __init__(self, note):
    self._note = note

  def after(self, step, state):
    assert int(state.step) == step
    self._note(["after", step])

  def seen(self, step, figures, state):
    assert np.isfinite(figures["loss"][0])
    self._note(["seen", step])

  def saving(self, step):
    self._note(["saving", step])
    return {"toy": step}

  def end(self):
    self._note(["end", 0])


@pytest.fixture
def heard(monkeypatch):
  """The moments of a listener that is given to `train`, [moment, step]."""
  moments: list = []
  monkeypatch.setattr(train, "train", functools.partial(train.train, more=[Toy(moments.append)]))
  return moments


@pytest.fixture
def stepping(monkeypatch):
  """Lets a function (step, state, ids) -> (state, metrics) take the steps of runs."""
  take = SharedRun.compile_train_step

  def by(function):
    def compiled(run):
      step = take(run)
      return lambda state, ids: function(step, state, ids)

    monkeypatch.setattr(SharedRun, "compile_train_step", compiled)

  return by


def test_a_listener_hears_a_run_a_stop_as_a_save_and_a_resume_behind_it(
  small_records, tmp_path, heard, stepping
):
  config = small_config("mlm", small_records, FIELDS)
  assert run_training(config, tmp_path / "whole") == 0
  assert heard == WHOLE
  heard.clear()

  def asking(step, state, ids):
    if int(state.step) == 2 and not heard.count(["seen", 3]):
      os.kill(os.getpid(), signal.SIGTERM)
    return step(state, ids)

  stepping(asking)
  assert run_training(config, tmp_path / "run") == 75
  assert heard == [*WHOLE[:5], ["saving", 3], ["end", 0]]
  heard.clear()
  assert run_training(config, tmp_path / "run") == 0
  assert heard == [["after", 3], *WHOLE[5:]]


def test_a_roll_back_ends_one_pass_and_begins_the_next(small_records, tmp_path, heard, stepping):
  bad = PackedRecords(small_records, length=32, seed=0).batch(5, 8)

  def leaping(step, state, ids):
    state, made = step(state, ids)
    return state, made | ({"loss": (1e4, 1.0)} if np.array_equal(ids, bad) else {})

  stepping(leaping)
  spikes = {"train.spike_zscore": 50.0, "train.spike_window": 4, "train.spike_roll_back": True}
  config = small_config("mlm", small_records, FIELDS | spikes | {"train.total_steps": 7})
  assert run_training(config, tmp_path) == 0
  again = [["after", 4], ["seen", 5], ["seen", 6], ["after", 6], ["seen", 7], ["after", 7], ["saving", 7]]
  # Update 6 leaps: the spikes are above the toy, which does not hear of it.
  assert heard == [*WHOLE[:8], ["seen", 5], ["end", 0], *again, ["end", 0]]


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

  monkeypatch.setattr(start.prepared, "ensure_records", lambda *_, **__: "")
  monkeypatch.setattr(start.prepared, "open", lambda _: records)
  monkeypatch.setattr(train, "make_run", fail)
  config = small_config("mlm", "", {"data.feed": "seqio", "data.source": "seqio:one"})
  with pytest.raises(errors.DataError, match="others"):
    train.train(config, str(tmp_path / "run"))
  assert closed == [1]


def test_a_roll_back_keeps_the_skips_that_its_checkpoint_does_not_list():
  known = (Skip(4, 3, 7, 9.0, 8.0), Skip(8, 2, 10, 9.0, 8.0))
  begun = Start(0, {"a": 1}, {"b": 2}, known).rolled_back(Skip(8, 1, 9, 9.0, 8.0))
  assert begun == Start(8, None, {"b": 2}, (known[1], Skip(8, 1, 9, 9.0, 8.0)))
