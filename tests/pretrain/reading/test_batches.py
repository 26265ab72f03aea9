"""Batches that are read ahead, small ones several at a time, are those of their steps."""

import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.reading import batches
from pretrain.reading.skips import Skip, position
from tests.pretrain.small_run import LENGTH, small_config, small_run

SIZE, FIRST = 8, 3
SKIPS = [Skip(6, 2, 7, 9.0, 8.0)]


class _Counted(PackedRecords):
  """Records that note how many are read at once."""

  reads: list[int]

  def numbered(self, numbers):
    self.reads.append(len(numbers))
    return super().numbered(numbers)


@pytest.mark.parametrize(("at_once", "together"), [(3 * SIZE, 3), (3 * SIZE + 7, 3), (SIZE, 1), (1, 1)])
def test_every_step_gets_its_batch(small_records, monkeypatch, at_once, together):
  monkeypatch.setattr(batches, "ROWS_AT_ONCE", at_once)
  records = _Counted(small_records, length=LENGTH, seed=0)
  records.reads = []
  run = small_run(small_config("mlm", small_records))
  read = batches.Batches(records, run, first=FIRST, skips=SKIPS)
  steps = range(FIRST, FIRST + 10)
  places = [position(step, SKIPS) for step in steps]
  for step, at in zip(steps, places, strict=True):
    np.testing.assert_array_equal(read.at(step), records.batch(at, SIZE), err_msg=f"step {step}")
  again = {step: read.again(step) for step in (steps[0], steps[-1])}
  for step, at in zip((steps[0], steps[-1]), (places[0], places[-1]), strict=True):
    np.testing.assert_array_equal(again[step][0], records.batch(at, SIZE))
    assert again[step][1] == records.examples(at, SIZE)
  read.close()
  assert set(records.reads) == {together * SIZE}


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
    np.testing.assert_array_equal(
      batch[:size], records.numbered(records.examples(0, 0, rows=range(at, at + size)))
    )
    assert batch.shape == (SIZE, LENGTH)
    assert (batch[size:] == records.pad).all()
    again, numbers = read.again(step)
    np.testing.assert_array_equal(again, batch)
    assert numbers == records.examples(0, 0, rows=range(at, at + size))
    at += size
  read.close()
