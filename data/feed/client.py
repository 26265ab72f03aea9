"""The trainer's side of a feed: starts the child process and returns its blocks as records."""

import collections
import contextlib
import json
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import errors, manifest
from data.command import run_child
from data.feed import messages
from data.prepare import from_config

CALLS = 8  # calls of `numbered` whose batches are kept, for reading ahead and for looking back at spikes


class Feed:
  """A child process that reads a Task or Mixture; it ends when this process ends."""

  def __init__(self, source: str, flags: Sequence[str]) -> None:
    """Starts `python -m data.feed` with these flags and waits until it has opened the Task `source`.

    `facts` and `described` are those of `stream.Stream`; `heldout` is [blocks, length] int32. Errors of the
    child are raised again, with fields of the config instead of flags.
    """
    self.source = source
    child_in, commands = os.pipe()
    answers, child_out = os.pipe()
    self._commands, self._answers = commands, os.fdopen(answers, "rb")
    self._ended: list[tuple[int, str]] = []
    command = [sys.executable, "-m", "data.feed", f"--source={source}", *flags]
    arguments = (command, child_in, child_out, self._ended)
    self._thread = threading.Thread(target=_run, args=arguments, daemon=True, name="feed")
    self._thread.start()
    # Closing the child's stdin ends it; the system closes the pipe if this process is killed.
    self._close = weakref.finalize(self, os.close, commands)
    self.described, self.heldout = self.receive()
    self.facts: dict[str, Any] = self.described.pop("facts")

  def begin(self, batch: int) -> dict[str, Any]:
    """Requests all batches from `batch` on; returns {'blocks_per_second', 'read'} of the child process."""
    with contextlib.suppress(BrokenPipeError):  # the child has ended, and `receive` raises its error
      os.write(self._commands, f"{json.dumps(batch)}\n".encode())
    return self.receive()[0]

  def receive(self) -> tuple[dict[str, Any], np.ndarray]:
    """Returns the next message; if the child has ended, raises its error."""
    try:
      return messages.receive(self._answers)
    except EOFError:
      self._thread.join()
    code, reason = self._ended[0]
    if code in (errors.ConfigError.exit_code, errors.DataError.exit_code):
      raise errors.of_code(code, from_config.with_fields(reason))
    raise errors.PeerError(
      f"the process that reads {self.source} has ended ({reason}); run the same command again, which resumes "
      "from the newest checkpoint"
    )

  def close(self) -> None:
    """Ends the child process and waits for it."""
    self._close()
    self._thread.join()


def _run(command: list[str], child_in: int, child_out: int, ended: list[tuple[int, str]]) -> None:
  """Runs the child until it ends, adds its exit code and error to `ended`, and closes its pipe ends."""
  try:
    ended.append(run_child(command, relay=True, stdin=child_in, stdout=child_out))
  except OSError as error:
    ended.append((errors.PeerError.exit_code, errors.reason(error)))
  finally:
    os.close(child_in)
    os.close(child_out)


class FedRecords:
  """Training blocks that a feed sends, numbered in that order, with the interface of `PackedRecords`."""

  def __init__(self, feed: Feed, *, batch_size: int, words: manifest.VocabularyInfo) -> None:
    """Reads `feed`, which no other object may read, in batches of `batch_size` blocks."""
    self.feed, self.vocabulary = feed, words
    self._size = batch_size
    self._lock = threading.Lock()
    self._kept: dict[int, tuple[np.ndarray, str]] = {}  # batch -> rows, digest of all ids to its end
    self._calls: collections.deque[int] = collections.deque(maxlen=CALLS)
    self._first, self._expected = 0, ""

  def begin(self, batch: int, digest: str = "") -> dict[str, Any]:
    """Starts reading at the global batch `batch`; returns the child's speed as `Feed.begin` does.

    To resume a run, pass the result of its `mark`: reading raises a DataError if the earlier batches have
    changed.
    """
    self._first, self._expected = batch, digest
    return self.feed.begin(batch)

  def close(self) -> None:
    """Ends the child process."""
    self.feed.close()

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]:
    """Returns the block numbers of `rows` (None: all rows) of a step's global batch."""
    return [step * batch_size + row for row in (range(batch_size) if rows is None else rows)]

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray:
    """Returns rows of the global batch of a step, as `PackedRecords.batch` does."""
    return self.numbered(self.examples(step, batch_size, rows=rows))

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns training blocks by number, [blocks, length] int32; caches those of the last CALLS calls."""
    first, last = min(numbers) // self._size, max(numbers) // self._size
    with self._lock:
      self._calls.append(first)
      rows = np.concatenate([self._batch(number) for number in range(first, last + 1)])
      for number in [number for number in self._kept if number < min(self._calls) - 1]:
        del self._kept[number]
    return rows[np.asarray(numbers) - first * self._size]

  def mark(self, batch: int) -> tuple[int, str]:
    """Returns (batch, digest): the arguments with which `begin` resumes at a recent or the next batch."""
    if self.feed.facts["records"]:  # nothing earlier is read again; `facts` has the sha256
      return batch, ""
    # Without the lock: the thread that reads ahead holds it while it waits for the child.
    return batch, self._expected if batch == self._first else self._kept[batch - 1][1]

  def _batch(self, number: int) -> np.ndarray:
    while number not in self._kept:
      content, rows = self.feed.receive()
      if content["number"] == self._first and self._expected not in ("", content["before"]):
        raise errors.DataError(
          f"{self.feed.source} no longer gives the blocks of the first {self._first:,} steps of this run "
          f"({self._expected[:12]}... -> {content['before'][:12]}...): its data changed, or its order does "
          "not depend only on the seed; restore the data, or start a new run with these weights:\n"
          "  --workdir=NEW --config.train.init_from=WORKDIR"
        )
      self._kept[content["number"]] = rows, content["sha256"]
    return self._kept[number][0]


class HeldoutBlocks:
  """Held-out blocks in memory, with the interface of `records.HeldoutRecords`."""

  def __init__(self, blocks: np.ndarray, words: manifest.VocabularyInfo) -> None:
    """Stores held-out blocks, [blocks, length] int32, padded with [PAD]."""
    self.vocabulary, self._blocks = words, blocks

  def __len__(self) -> int:
    """Returns the number of held-out blocks."""
    return len(self._blocks)

  def unigram(self) -> np.ndarray:
    """Counts each id in the held-out blocks, [vocab] int64, because those of training blocks are unknown."""
    counts = np.bincount(self._blocks.ravel(), minlength=self.vocabulary.size)
    counts[self.vocabulary.special_ids["pad"]] = 0
    return counts

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns held-out blocks start to stop - 1, fewer at the end: [at most stop - start, length] int32."""
    return self._blocks[start:stop]

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns held-out blocks by number, [blocks, length] int32; numbers past the end are skipped."""
    return self._blocks[[number for number in numbers if number < len(self)]]
