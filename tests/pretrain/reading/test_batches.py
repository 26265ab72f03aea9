"""Batches that are read ahead, small ones several at a time, are those of their steps."""

import numpy as np

from data.records import PackedRecords
from pretrain.reading import batches
from pretrain.reading.skips import Skip, first_row, known_skips, position
from pretrain.settings.batch_sizes import BatchSizes
from tests.pretrain.small_run import LENGTH, small_config, small_run

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
    assert set(records.reads) == {together * SIZE}


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
