"""A listener added by one row: its moments, in order, also after a stop, a resume and a roll-back."""

import json
import os
import signal

import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.start import listeners
from tests.pretrain.pod.processes import running
from tests.pretrain.small_run import SharedRun, run_training, small_config
from tests.pretrain.start.toy_listener import ASKED_AT, Toy


@pytest.fixture
def heard(monkeypatch):
  """The moments of a toy listener at the end of the table, [moment, step]."""
  moments = []
  monkeypatch.setattr(listeners, "LISTENERS", (*listeners.LISTENERS, lambda parts: Toy(moments.append)))
  return moments


FIELDS = {"train.total_steps": 5, "train.checkpoint_every": 4, "train.eval_every": 10, "train.log_every": 10}
WHOLE = [["after", 0], ["seen", 1], ["seen", 2], ["after", 2], ["seen", 3], ["seen", 4], ["after", 4]]
WHOLE += [["saving", 4], ["seen", 5], ["after", 5], ["saving", 5], ["end", 0]]


def test_a_listener_is_one_row_and_hears_a_run_in_order(small_records, tmp_path, heard):
  assert run_training(small_config("mlm", small_records, FIELDS), tmp_path) == 0
  assert heard == WHOLE


def test_a_stop_is_heard_as_a_save_and_a_resume_goes_on_behind_it(
  small_records, tmp_path, heard, monkeypatch
):
  take = SharedRun.compile_train_step

  def compiled(run):
    step = take(run)

    def asking(state, ids):
      if int(state.step) == 2:
        os.kill(os.getpid(), signal.SIGTERM)
      return step(state, ids)

    return asking

  config = small_config("mlm", small_records, FIELDS)
  monkeypatch.setattr(SharedRun, "compile_train_step", compiled)
  assert run_training(config, tmp_path) == 75
  assert heard == [*WHOLE[:5], ["saving", 3], ["end", 0]]
  monkeypatch.setattr(SharedRun, "compile_train_step", take)
  heard.clear()
  assert run_training(config, tmp_path) == 0
  assert heard == [["after", 3], *WHOLE[5:]]


def test_a_roll_back_ends_one_pass_and_begins_the_next(small_records, tmp_path, heard, monkeypatch):
  bad = PackedRecords(small_records, length=32, seed=0).batch(5, 8)
  take = SharedRun.compile_train_step

  def compiled(run):
    step = take(run)

    def leaping(state, ids):
      state, made = step(state, ids)
      return state, made | ({"loss": (1e4, 1.0)} if np.array_equal(ids, bad) else {})

    return leaping

  monkeypatch.setattr(SharedRun, "compile_train_step", compiled)
  spikes = {"train.spike_zscore": 50.0, "train.spike_window": 4, "train.spike_roll_back": True}
  config = small_config("mlm", small_records, FIELDS | spikes | {"train.total_steps": 7})
  assert run_training(config, tmp_path) == 0
  again = [["after", 4], ["seen", 5], ["seen", 6], ["after", 6], ["seen", 7], ["after", 7], ["saving", 7]]
  # Update 6 leaps: the spikes are above the toy, which does not hear of it.
  assert heard == [*WHOLE[:8], ["seen", 5], ["end", 0], *again, ["end", 0]]


def test_two_processes_hear_the_same_moments_through_an_agreed_stop_and_a_resume(small_records, tmp_path):
  steps = 120
  fields = {"data.directory": small_records, "train.total_steps": steps, "train.checkpoint_every": 10_000}
  flags = [f"--config.{name}={value}" for name, value in (fields | {"train.eval_every": 60}).items()]
  program = ("-m", "tests.pretrain.start.toy_listener")
  for codes in ([75, 75], [0, 0]):
    with running(2, tmp_path / "run", *flags, program=program, TOY_MOMENTS=str(tmp_path)) as two:
      assert two.codes() == codes
  first, second = (
    [json.loads(line) for line in (tmp_path / f"{index}.jsonl").read_text().splitlines()] for index in (0, 1)
  )
  assert first == second
  stopped = next(step for moment, step in first if moment == "saving")
  assert ASKED_AT < stopped < steps
  expected = []
  for begin, last in ((0, stopped), (stopped, steps)):
    expected.append(["after", begin])
    for step in range(begin + 1, last + 1):
      expected += [["seen", step], *([["after", step]] if step % Toy.every == 0 else [])]
    expected += [["saving", last], ["end", 0]]
  assert first == expected
