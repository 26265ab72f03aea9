"""The trainer's side of a feed, with messages made by hand: what it keeps, what it refuses."""

import hashlib
import io
import os
import signal
import threading

import numpy as np
import pytest

from data import command, errors, manifest
from data.feed import __main__ as child
from data.feed import client, messages

WORDS = manifest.VocabularyInfo("wordpiece", False, 9, "d" * 64, {"cls": 0, "pad": 1, "sep": 2})
ROWS = np.arange(60, dtype=np.int32).reshape(30, 2)  # fifteen batches of two rows


class Sent:
  """A feed that has all its messages."""

  source = "seqio:mine"

  def __init__(self, first: int = 0, records: str = "") -> None:
    self.facts = {"records": records}
    self._all = (one for one in child.batches([ROWS[:1], ROWS[1:]], 2, 0, first))

  def begin(self, batch: int) -> dict:
    return next(self._all)[0]

  def receive(self):
    return next(self._all)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
  monkeypatch.setattr(child, "MEASURED_SECONDS", 0.0)


def fed(first: int = 0, digest: str = "", **options) -> client.FedRecords:
  records = client.FedRecords(Sent(first, **options), batch_size=2, words=WORDS)
  records.begin(first, digest)
  return records


def digest(batches: int) -> str:
  return hashlib.sha256(ROWS[: 2 * batches].astype("<i4").tobytes()).hexdigest()


def test_messages_come_out_as_they_went_in_and_their_end_is_noticed():
  pipe = io.BytesIO()
  messages.send(pipe, {"a": 1}, ROWS[:2])
  messages.send(pipe, {"b": "x"})
  whole = pipe.getvalue()
  pipe.seek(0)
  content, rows = messages.receive(pipe)
  assert content == {"a": 1} and rows.dtype == np.int32 and rows.tolist() == [[0, 1], [2, 3]]
  assert messages.receive(pipe)[0] == {"b": "x"}
  for end in (0, 5, len(whole.splitlines()[0]) + 9):
    with pytest.raises(EOFError):
      messages.receive(io.BytesIO(whole[:end]))


def test_the_speed_is_told_first_without_what_came_with_the_start(monkeypatch):
  monkeypatch.setattr(child, "MEASURED_SECONDS", 1.0)
  times = iter([10.0, 14.0])
  monkeypatch.setattr(child.time, "perf_counter", lambda: next(times))
  sent = [*child.batches([ROWS[:20], ROWS[20:28]], 3, 0, 1)]
  assert sent[0] == ({"blocks_per_second": 2.0, "read": 9}, None)
  assert [content["number"] for content, _ in sent[1:]] == [*range(1, 9)]
  assert np.array_equal(np.concatenate([rows for _, rows in sent[1:]]), ROWS[3:27])


def test_rows_are_found_by_their_place_and_kept_for_a_while():
  records = fed()
  assert records.examples(3, 2, rows=[1]) == [7]
  assert records.batch(3, 2, rows=[1]).tolist() == [ROWS[7].tolist()]
  assert np.array_equal(records.numbered([9, 8, 12]), ROWS[[9, 8, 12]])
  assert np.array_equal(records.batch(3, 2), ROWS[6:8])  # again, as after a spike
  for step in range(5, 14):
    records.batch(step, 2)
  assert min(records._kept) == 5  # the batch before the last eight calls: its digest may be saved


def test_a_mark_is_the_digest_of_all_before_and_begins_the_same_blocks_elsewhere():
  records = fed()
  records.batch(0, 2), records.batch(1, 2), records.batch(2, 2)
  assert records.mark(2) == (2, digest(2))
  assert records.mark(3) == (3, digest(3))
  again = fed(*records.mark(2))
  assert np.array_equal(again.batch(2, 2), ROWS[4:6])
  assert again.mark(2) == (2, digest(2))


def test_other_blocks_before_are_refused():
  with pytest.raises(
    errors.DataError,
    match=r"of the first 2 steps of this run \(abc.*\n  --workdir=NEW --config.train.init_fr",
  ):
    fed(2, "abc").batch(2, 2)


def test_a_mark_does_not_wait_for_the_thread_that_reads_ahead():
  records = fed()
  records.batch(0, 2)
  with records._lock:
    marking = threading.Thread(target=lambda: found.append(records.mark(1)), daemon=True)
    found: list = []
    marking.start()
    marking.join(timeout=5)
    assert found == [(1, digest(1))]


def test_flags_that_may_be_addresses_are_fetched_or_opened(monkeypatch):
  monkeypatch.setattr(command.copies, "local", lambda address, *, flag: f"copy of {address} for {flag}")
  numbers = [f"--{name}=1" for name in ("length", "seed", "batch_size", "heldout")]
  asked = child.parse([*numbers, "--vocabulary=gs://b/words", "--tfds_directory=gs://b/tfds"])
  assert asked.vocabulary == "copy of gs://b/words for --vocabulary" and asked.text_field == "text"
  assert asked.tfds_directory == "gs://b/tfds"
  with pytest.raises(errors.ConfigError, match="--module"):
    child.parse([*numbers, "--module=gs://b/tasks.py"])


def test_records_of_a_task_are_not_read_again():
  records = fed(records="f" * 64)
  records.batch(0, 2)
  assert records.mark(1) == (1, "")


def test_heldout_blocks_count_their_own_ids_without_padding():
  blocks = client.HeldoutBlocks(np.asarray([[0, 3, 2, 1], [0, 3, 3, 2]], np.int32), WORDS)
  assert blocks.unigram().tolist() == [2, 0, 2, 3, 0, 0, 0, 0, 0]
  assert blocks.numbered([1, 2]).tolist() == [[0, 3, 3, 2]]
  assert len(blocks) == 2 and blocks.rows(1, 9).tolist() == [[0, 3, 3, 2]]


def _child(monkeypatch, code: str) -> None:
  """Lets a feed start this Python code instead of `data.feed`."""
  run = client.run_child
  monkeypatch.setattr(
    client, "run_child", lambda command, **options: run([command[0], "-c", code, *command[4:]], **options)
  )


def test_the_error_of_a_child_has_fields_of_the_config(monkeypatch):
  _child(monkeypatch, "import sys; print('error: --vocabulary=x: gone', file=sys.stderr); sys.exit(3)")
  with pytest.raises(errors.DataError, match=r"^--config\.data\.vocabulary=x: gone$"):
    client.Feed("seqio:mine", [])


def test_a_child_that_is_killed_is_one_line(monkeypatch):
  code = (
    "import os, sys; from data.feed import messages\n"
    "messages.send(sys.stdout.buffer, {'facts': {}, 'pid': os.getpid()})\n"
    "sys.stdin.read()"
  )
  _child(monkeypatch, code)
  feed = client.Feed("seqio:mine", [])
  threading.Timer(0.2, os.kill, (feed.described["pid"], signal.SIGKILL)).start()
  with pytest.raises(
    errors.PeerError, match=r"reads seqio:mine has ended \(killed by signal 9\); run the same"
  ):
    feed.receive()
  with pytest.raises(errors.PeerError):
    feed.begin(0)
  feed.close()


def test_a_child_ends_when_its_feed_is_closed_or_forgotten(monkeypatch):
  code = (
    "import sys; from data.feed import messages\n"
    "messages.send(sys.stdout.buffer, {'facts': {}})\n"
    "sys.stdin.read()"
  )
  _child(monkeypatch, code)
  feed = client.Feed("seqio:mine", [])
  feed.close()
  assert feed._ended[0][0] == 0
  forgotten = client.Feed("seqio:mine", [])
  thread = forgotten._thread
  del forgotten
  thread.join(timeout=10)
  assert not thread.is_alive()
