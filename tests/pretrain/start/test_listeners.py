"""A listener added by one row: its moments, in order, also after a stop, a resume and a roll-back."""

import os
import signal

import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.listener import Listener
from pretrain.start import listeners
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
  """The moments of a toy listener at the end of the table, [moment, step]."""
  moments = []
  monkeypatch.setattr(listeners, "LISTENERS", (*listeners.LISTENERS, lambda parts: Toy(moments.append)))
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
