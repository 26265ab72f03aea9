"""The trainer's side of a feed, with messages made by hand: what it keeps, what it refuses."""

import hashlib

import numpy as np
import pytest

from data import errors, manifest
from data.feed import __main__ as child
from data.feed import client

WORDS = manifest.VocabularyInfo("wordpiece", False, 9, "d" * 64, {"cls": 0, "pad": 1, "sep": 2})
ROWS = np.arange(60, dtype=np.int32).reshape(30, 2)  # fifteen batches of two rows


class Sent:
  """A feed that has all its messages."""

  source = "seqio:mine"

  def __init__(self, first: int, records: str) -> None:
    self.facts = {"records": records}
    self._all = (one for one in child.batches([ROWS[:1], ROWS[1:]], 2, 0, first))

  def begin(self, batch: int) -> dict:
    return next(self._all)[0]

  def receive(self):
    return next(self._all)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
  monkeypatch.setattr(child, "MEASURED_SECONDS", 0.0)


def fed(first: int = 0, digest: str = "", records: str = "") -> client.FedRecords:
  made = client.FedRecords(Sent(first, records), batch_size=2, words=WORDS)
  made.begin(first, digest)
  return made


def digest(batches: int) -> str:
  return hashlib.sha256(ROWS[: 2 * batches].astype("<i4").tobytes()).hexdigest()


def test_batches_after_those_that_are_skipped_are_the_same():
  (_, *sent) = child.batches([ROWS[:20], ROWS[20:28]], 3, 0, 2)
  assert [content["number"] for content, _ in sent] == [*range(2, 9)]
  assert np.array_equal(np.concatenate([rows for _, rows in sent]), ROWS[6:27])
  assert (sent[0][0]["before"], sent[1][0]["before"]) == (digest(3), sent[0][0]["sha256"])


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
  blocks = client.HeldoutBlocks(np.asarray([[0, 3, 2, 1], [0, 3, 3, 2]], np.int32), WORDS)
  assert blocks.unigram().tolist() == [2, 0, 2, 3, 0, 0, 0, 0, 0]
  assert blocks.numbered([1, 2]).tolist() == [[0, 3, 3, 2]]
  assert len(blocks) == 2 and blocks.rows(1, 9).tolist() == [[0, 3, 3, 2]]
