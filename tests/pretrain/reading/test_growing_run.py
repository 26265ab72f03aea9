"""Runs whose batches grow: what they read, and that they go on as if they had never stopped."""

import contextlib
import io
import json
import os
import shutil
import signal

import pytest

from data.command import STOPPED
from data.errors import ConfigError
from data.records import PackedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.plan import dry_run
from pretrain.report import runs
from tests.pretrain.small_run import (
  LENGTH,
  assert_same_params,
  devices,
  metric_lines,
  run_training,
  saved_params,
  small_config,
)

SIZES = [2, 4, 6, 8, 8, 8]
WARMUP = {"train.microbatches": 4, "train.batch_size_start": 2, "train.batch_warmup_steps": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_records):
  """The workdir of a finished run of six growing batches."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  assert run_training(small_config("mlm", small_records, WARMUP), workdir) == 0
  return workdir


def test_the_rows_of_a_run_follow_each_other(whole, small_records):
  with contextlib.redirect_stdout(io.StringIO()) as out:
    assert checkpoints.main(["examples", str(whole), "--steps=1:6"]) == 0
  read = [json.loads(line)["records"] for line in out.getvalue().splitlines()]
  assert [len(numbers) for numbers in read] == SIZES
  records = PackedRecords(small_records, length=LENGTH, seed=0)
  assert [number for numbers in read for number in numbers] == records.examples(0, sum(SIZES))


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(whole, small_records, tmp_path, number):
  done = []

  def say(line):
    if line.startswith("step 3/6") and not done:
      done.append(line)
      os.kill(os.getpid(), signal.SIGTERM)

  config, workdir = small_config("mlm", small_records, WARMUP), tmp_path / "run"
  assert run_training(config, workdir, say=say) == STOPPED
  assert run_training(config, workdir, number=number) == 0
  if number == 1:
    assert metric_lines(workdir) == metric_lines(whole)
    assert_same_params(saved_params(workdir), saved_params(whole))
  else:
    losses = [
      [line["train/loss"] for line in metric_lines(path) if "train/loss" in line] for path in (workdir, whole)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(("name", "value"), [("microbatches", 2), ("batch_warmup_steps", 6)])
def test_a_run_whose_batches_would_grow_otherwise_does_not_go_on(whole, small_records, tmp_path, name, value):
  workdir = shutil.copytree(whole, tmp_path / "run")
  changed = {**WARMUP, "train.batch_size_start": 4, f"train.{name}": value}
  changed |= (
    {"train.batch_size_start": 2} if name == "batch_warmup_steps" else {"train.batch_warmup_steps": 3}
  )
  with pytest.raises(ConfigError, match=rf"another config .*train\.{name}: "):
    run_training(small_config("mlm", small_records, changed | {"train.total_steps": 8}), workdir)


def test_costs_count_the_rows_that_are_read(whole, small_records):
  with devices(1):
    text = dry_run.dry_run(small_config("mlm", small_records, WARMUP), workdir="")
  assert f"{2 * LENGTH} to {8 * LENGTH} (after 3 updates)" in text
  assert f"tokens in all                 {sum(SIZES) * LENGTH:,}\n" in text
  (run,) = runs.read([str(whole)])
  assert [run.tokens(step) for step in (0, 1, 3, 6)] == [0, 2 * LENGTH, 12 * LENGTH, sum(SIZES) * LENGTH]
