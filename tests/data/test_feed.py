"""Blocks of a Task as records: what is kept, what is refused."""

import hashlib

import numpy as np
import pytest

from data import errors, feed, manifest

WORDS = manifest.VocabularyInfo("wordpiece", False, 9, "d" * 64, {"cls": 0, "pad": 1, "sep": 2})
ROWS = np.arange(60, dtype=np.int32).reshape(30, 2)  # fifteen batches of two rows


class Blocks:
  """A stream of `ROWS` in two chunks; one of records begins at any block."""

  source = "seqio:mine"

  def __init__(self, records: str) -> None:
    self._records = records

  def facts(self) -> dict:
    return {"records": self._records}

  def chunks(self, first: int):
    begin = first if self._records else 0
    rows = ROWS[begin:]
    return begin, iter([rows[:1], rows[1:]])


def fed(first: int = 0, digest: str = "", records: str = "", size: int = 2) -> feed.FedRecords:
  made = feed.FedRecords(Blocks(records), batch_size=size, words=WORDS)
  made.begin(first, digest)
  return made


def digest(batches: int) -> str:
  return hashlib.sha256(ROWS[: 2 * batches].astype("<i4").tobytes()).hexdigest()


def test_batches_after_those_that_are_skipped_are_the_same():
  assert np.array_equal(fed(2, size=3).numbered(range(6, 27)), ROWS[6:27])
  assert np.array_equal(fed(2, size=3, records="f" * 64).numbered(range(6, 27)), ROWS[6:27])


def test_rows_are_found_by_their_place_and_kept_for_a_while():
  records = fed()
  assert records.batch(3, 2, rows=[1]).tolist() == [ROWS[7].tolist()]
  assert np.array_equal(records.numbered([9, 8, 12]), ROWS[[9, 8, 12]])
  assert np.array_equal(records.batch(3, 2), ROWS[6:8])  # again, as after a spike


def test_a_mark_begins_the_same_blocks_elsewhere_and_other_blocks_before_are_refused():
  records = fed()
  for step in range(3):
    records.batch(step, 2)
  assert [records.mark(2), records.mark(3)] == [(2, digest(2)), (3, digest(3))]
  again = fed(*records.mark(2))
  assert np.array_equal(again.batch(2, 2), ROWS[4:6]) and again.mark(2) == (2, digest(2))
  with pytest.raises(errors.DataError, match=r"\n  --workdir=NEW --config\.train\.init_from=WORKDIR"):
    fed(2, "abc").batch(2, 2)
  assert fed(records="f" * 64).mark(1) == (1, "")  # records of a Task are not read again


def test_heldout_blocks_count_their_own_ids_without_padding():
  blocks = feed.HeldoutBlocks(np.asarray([[0, 3, 2, 1], [0, 3, 3, 2]], np.int32), WORDS)
  assert blocks.unigram().tolist() == [2, 0, 2, 3, 0, 0, 0, 0, 0]
  assert blocks.sample([1, 2]).tolist() == [[0, 3, 3, 2]]
  assert len(blocks) == 2 and blocks.rows(1, 9).tolist() == [[0, 3, 3, 2]]
