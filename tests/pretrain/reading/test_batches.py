"""Batches that are read ahead, small ones several at a time, are those of their steps."""

import json

import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.reading import batches
from pretrain.reading.ledger import FILE_NAME, Ledger, entry_of
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
@pytest.mark.parametrize("is_kept", [True, False])
def test_every_step_gets_its_batch(small_records, tmp_path, monkeypatch, at_once, together, is_kept):
  monkeypatch.setattr(batches, "ROWS_AT_ONCE", at_once)
  records = _Counted(small_records, length=LENGTH, seed=0)
  records.reads = []
  ledger = Ledger(tmp_path, step=FIRST, is_kept=is_kept)
  run = small_run(small_config("mlm", small_records))
  read = batches.Batches(records, run, first=FIRST, ledger=ledger, skips=SKIPS)
  steps = range(FIRST, FIRST + 10)
  places = [position(step, SKIPS) for step in steps]
  for step, at in zip(steps, places, strict=True):
    np.testing.assert_array_equal(read.at(step), records.batch(at, SIZE), err_msg=f"step {step}")
  again = {step: read.again(step) for step in (steps[0], steps[-1])}
  for step, at in zip((steps[0], steps[-1]), (places[0], places[-1]), strict=True):
    np.testing.assert_array_equal(again[step][0], records.batch(at, SIZE))
    assert again[step][1] == records.examples(at, SIZE)
  read.close()
  ledger.close()
  assert set(records.reads) == {together * SIZE}
  if is_kept:
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    wanted = [entry_of(records.examples(at, SIZE), records.batch(at, SIZE)) for at in places]
    assert lines == [{"step": step + 1} | entry for step, entry in zip(steps, wanted, strict=True)]
