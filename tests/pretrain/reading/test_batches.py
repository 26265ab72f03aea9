"""Batches that are read ahead are those of their steps; runs whose batches grow go on as if never stopped."""

import json
import re
import shutil

import numpy as np
import pytest

from data.errors import ConfigError
from data.records import PackedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.plan import dry_run
from pretrain.reading import batches
from pretrain.reading.batches import Skip, first_row, known_skips, position
from pretrain.report import runs
from pretrain.settings.run import BatchSizes
from tests.pretrain.small_run import (
  LENGTH,
  assert_same_params,
  devices,
  metric_lines,
  run_training,
  saved_params,
  small_config,
  small_run,
)

SIZE, FIRST = 8, 3
SKIPS = [Skip(6, 2, 7, 9.0, 8.0)]


class _Counted(PackedRecords):
  """Records that note how many are read at once."""

  reads: list[int]

  def numbered(self, numbers):
    self.reads.append(len(numbers))
    return super().numbered(numbers)


def test_every_step_gets_its_batch(small_records, monkeypatch):
  records = _Counted(small_records, length=LENGTH, seed=0)
  run = small_run(small_config("mlm", small_records))
  steps = range(FIRST, FIRST + 10)
  places = [position(step, SKIPS) for step in steps]
  for at_once, together in ((3 * SIZE + 7, 3), (SIZE, 1), (1, 1)):
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", at_once)
    records.reads = []
    read = batches.Batches(records, run, first=FIRST, skips=SKIPS)
    for step, at in zip(steps, places, strict=True):
      assert read.arrives(step, lambda: False)
      np.testing.assert_array_equal(read.at(step), records.batch(at, SIZE), err_msg=f"step {step}")
    for step, at in ((steps[0], places[0]), (steps[-1], places[-1])):
      batch, numbers = read.again(step)
      np.testing.assert_array_equal(batch, records.batch(at, SIZE))
      assert numbers == records.examples(at, SIZE)
    read.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
      read.arrives(steps[-1] + 50, lambda: False)
    assert set(records.reads) == {together * SIZE}
    assert len(records.reads) <= (len(steps) + batches.STEPS_AHEAD) // together + 1  # and no further ahead


def test_data_is_taken_from_further_on_after_a_skip():
  meta = {"spikes": {"skips": [[4, 3, 7, 9.0, 8.0], [8, 2, 10, 9.0, 8.0]]}}
  skips = known_skips(meta)
  assert skips[1] == Skip(8, 2, 10, 9.0, 8.0) and known_skips({}) == ()
  assert [position(step, skips) for step in (0, 3, 4, 7, 8, 9)] == [0, 3, 7, 10, 13, 14]
  sizes = BatchSizes(8, 4, 2, 6)  # 2, 2, 4, 4, 6, 6, 8, 8, ...: the batches of updates 4, 5, 6 have 20 rows
  assert [first_row(step, skips, sizes) for step in (3, 4, 8)] == [8, 32, 40 + 20 + 16]


WARMUP = {"train.microbatches": 4, "train.batch_size_start": 2, "train.batch_warmup_steps": 6}


def test_growing_batches_read_every_row_once_and_skip_what_a_spike_skipped(small_records):
  records = PackedRecords(small_records, length=LENGTH, seed=0)
  run = small_run(small_config("mlm", small_records, WARMUP))
  rows = [2, 2, 4, 4, 6, 6, 8, 8]
  skip = Skip(3, 2, 5, 9.0, 8.0)  # after 3 updates the batches of updates 3 and 4, 4 + 6 rows
  read = batches.Batches(records, run, first=0, skips=[skip])
  at = 0
  for step, size in enumerate(rows):
    at += 10 * (step == skip.at)
    batch = np.asarray(read.at(step))
    numbers = records.examples(0, 0, rows=range(at, at + size))
    np.testing.assert_array_equal(batch[:size], records.numbered(numbers))
    assert batch.shape == (SIZE, LENGTH) and (batch[size:] == records.pad).all()
    again, found = read.again(step)
    np.testing.assert_array_equal(again, batch)
    assert found == numbers
    at += size
  read.close()


ROWS = [2, 4, 6, 8, 8, 8]
GROWING = WARMUP | {"train.batch_warmup_steps": 3, "train.checkpoint_steps": (2,)}


@pytest.fixture(scope="module")
def growing(tmp_path_factory, small_records):
  """The workdir of a finished run of six growing batches."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  assert run_training(small_config("mlm", small_records, GROWING), workdir) == 0
  return workdir


def test_the_rows_of_a_run_follow_each_other_and_costs_count_them(growing, small_records, capsys):
  assert checkpoints.main(["examples", str(growing), "--steps=1:6"]) == 0
  read = [json.loads(line)["records"] for line in capsys.readouterr().out.splitlines()]
  assert [len(numbers) for numbers in read] == ROWS
  records = PackedRecords(small_records, length=LENGTH, seed=0)
  assert [number for numbers in read for number in numbers] == records.examples(0, sum(ROWS))
  with devices(1):
    text = dry_run.dry_run(small_config("mlm", small_records, GROWING), workdir="")
  assert re.search(rf"tokens in all +{sum(ROWS) * LENGTH:,}\n", text)
  (run,) = runs.read([str(growing)])
  assert [run.tokens(step) for step in (0, 1, 3, 6)] == [0, 2 * LENGTH, 12 * LENGTH, sum(ROWS) * LENGTH]


def test_a_run_goes_on_bit_for_bit_but_not_with_batches_that_grow_otherwise(growing, small_records, tmp_path):
  cut = shutil.copytree(growing, tmp_path / "run")
  shutil.rmtree(cut / "checkpoints" / "6")
  shutil.rmtree(cut / "checkpoints" / "4")
  for changes in (
    {"train.microbatches": 2, "train.batch_size_start": 4},
    {"train.batch_warmup_steps": 6},
  ):
    with pytest.raises(ConfigError, match=next(iter(changes))):
      run_training(small_config("mlm", small_records, GROWING | changes), cut)
  assert run_training(small_config("mlm", small_records, GROWING), cut) == 0
  assert metric_lines(cut) == metric_lines(growing)
  assert_same_params(saved_params(cut), saved_params(growing))
