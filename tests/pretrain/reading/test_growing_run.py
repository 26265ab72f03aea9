"""Runs whose batches grow: what they read, and that they go on as if they had never stopped."""

import json
import shutil

import pytest

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
WARMUP |= {"train.checkpoint_steps": (2,)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_records):
  """The workdir of a finished run of six growing batches."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  assert run_training(small_config("mlm", small_records, WARMUP), workdir) == 0
  return workdir


def test_the_rows_of_a_run_follow_each_other_and_costs_count_them(whole, small_records, capsys):
  assert checkpoints.main(["examples", str(whole), "--steps=1:6"]) == 0
  read = [json.loads(line)["records"] for line in capsys.readouterr().out.splitlines()]
  assert [len(numbers) for numbers in read] == SIZES
  records = PackedRecords(small_records, length=LENGTH, seed=0)
  assert [number for numbers in read for number in numbers] == records.examples(0, sum(SIZES))
  with devices(1):
    text = dry_run.dry_run(small_config("mlm", small_records, WARMUP), workdir="")
  assert f"tokens in all                 {sum(SIZES) * LENGTH:,}\n" in text
  (run,) = runs.read([str(whole)])
  assert [run.tokens(step) for step in (0, 1, 3, 6)] == [0, 2 * LENGTH, 12 * LENGTH, sum(SIZES) * LENGTH]


def test_a_run_goes_on_bit_for_bit_but_not_with_batches_that_grow_otherwise(whole, small_records, tmp_path):
  cut = shutil.copytree(whole, tmp_path / "run")
  shutil.rmtree(cut / "checkpoints" / "6")
  shutil.rmtree(cut / "checkpoints" / "4")
  for changes in (
    {"train.microbatches": 2, "train.batch_size_start": 4},
    {"train.batch_warmup_steps": 6},
  ):
    with pytest.raises(ConfigError, match=next(iter(changes))):
      run_training(small_config("mlm", small_records, WARMUP | changes), cut)
  assert run_training(small_config("mlm", small_records, WARMUP), cut) == 0
  assert metric_lines(cut) == metric_lines(whole)
  assert_same_params(saved_params(cut), saved_params(whole))
