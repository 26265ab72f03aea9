"""The trainer's side of a feed: a child process that reads a Task; its blocks as records. No TensorFlow."""

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

CALLS = 8  # of `numbered` whose batches are kept: those read ahead, and those before a spike or a bad step


class Feed:
  """A child process that reads a Task or Mixture, and ends with this one."""

  def __init__(self, source: str, flags: Sequence[str]) -> None:
    """Starts `python -m data.feed` with these flags and waits until it has found the Task `source`.

    `facts` and `described` are those of `stream.Stream`; `heldout` is [blocks, length] int32. The errors are
    those of the child, with fields of the config for its flags.
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
    # The child ends when its stdin does: when this is closed, and when this process ends in whatever way.
    self._close = weakref.finalize(self, os.close, commands)
    self.described, self.heldout = self.receive()
    self.facts: dict[str, Any] = self.described.pop("facts")

  def begin(self, batch: int) -> dict[str, Any]:
    """Asks for all batches from this one on; returns how fast the child reads, as `__main__.batches` says."""
    with contextlib.suppress(BrokenPipeError):  # it is gone: `receive` says why
      os.write(self._commands, f"{json.dumps(batch)}\n".encode())
    return self.receive()[0]

  def receive(self) -> tuple[dict[str, Any], np.ndarray]:
    """Returns the next message; if there is none any more, raises the error that the child ended with."""
    try:
      return messages.receive(self._answers)
    except EOFError:
      self._thread.join()
    code, reason = self._ended[0]
    if code in (errors.ConfigError.exit_code, errors.DataError.exit_code):
      raise errors.of_code(code, from_config.with_fields(reason))
    raise errors.PeerError(
      f"the process that reads {self.source} is gone ({reason}); start the same command again, which goes on "
      "from the newest checkpoint"
    )

  def close(self) -> None:
    """Ends the child."""
    self._close()
    self._thread.join()


def _run(command: list[str], child_in: int, child_out: int, ended: list[tuple[int, str]]) -> None:
  """Runs the child to its end, and only then closes its side of the pipes here."""
  try:
    ended.append(run_child(command, relay=True, stdin=child_in, stdout=child_out))
  except OSError as error:
    ended.append((errors.PeerError.exit_code, errors.reason(error)))
  finally:
    os.close(child_in)
    os.close(child_out)


class FedRecords:
  """The training blocks of a feed with the interface of `PackedRecords`; numbers are places in its order."""

  def __init__(self, feed: Feed, *, batch_size: int, words: manifest.VocabularyInfo) -> None:
    """Takes a feed that no other reads."""
    self.feed, self.vocabulary = feed, words
    self._size = batch_size
    self._lock = threading.Lock()
    self._kept: dict[int, tuple[np.ndarray, str]] = {}  # batch: its rows, the digest of all up to its end
    self._calls: collections.deque[int] = collections.deque(maxlen=CALLS)
    self._first, self._expected = 0, ""

  def begin(self, batch: int, digest: str = "") -> dict[str, Any]:
    """Begins to read at a batch; returns the speed, as `Feed.begin`.

    Both are what `mark` gave in the run that goes on: reading raises a DataError if the batches
    before are others now.
    """
    self._first, self._expected = batch, digest
    return self.feed.begin(batch)

  def close(self) -> None:
    """Ends the child."""
    self.feed.close()

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]:
    """Returns the places of the rows of a global batch."""
    return [step * batch_size + row for row in (range(batch_size) if rows is None else rows)]

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray:
    """Returns the rows of the global batch of a step, as `PackedRecords.batch`."""
    return self.numbered(self.examples(step, batch_size, rows=rows))

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the blocks at these places, [places, length] int32: those of the last CALLS calls or later."""
    first, last = min(numbers) // self._size, max(numbers) // self._size
    with self._lock:
      self._calls.append(first)
      rows = np.concatenate([self._batch(number) for number in range(first, last + 1)])
      for number in [number for number in self._kept if number < min(self._calls) - 1]:
        del self._kept[number]
    return rows[np.asarray(numbers) - first * self._size]

  def mark(self, batch: int) -> tuple[int, str]:
    """Returns what `begin` takes to go on at a batch of the last calls, or the one behind them."""
    if self.feed.facts["records"]:  # nothing before is read again, and their sha256 is compared
      return batch, ""
    # Without the lock, which the thread that reads ahead holds while it waits for the child.
    return batch, self._expected if batch == self._first else self._kept[batch - 1][1]

  def _batch(self, number: int) -> np.ndarray:
    while number not in self._kept:
      content, rows = self.feed.receive()
      if content["number"] == self._first and self._expected not in ("", content["before"]):
        raise errors.DataError(
          f"{self.feed.source} gives other blocks now than to the {self._first:,} steps of this run "
          f"({self._expected[:12]}... -> {content['before'][:12]}...): its data changed, or its order is not "
          "a function of the seed; bring the old data back, or start a new run with the weights of this one "
          "(--workdir=NEW --config.train.init_from=WORKDIR)"
        )
      self._kept[content["number"]] = rows, content["sha256"]
    return self._kept[number][0]


class HeldoutBlocks:
  """Held-out blocks in memory, with the interface of `PackedRecords`."""

  def __init__(self, blocks: np.ndarray, words: manifest.VocabularyInfo) -> None:
    """Takes [blocks, length] int32, padded with [PAD]."""
    self.vocabulary, self._blocks = words, blocks

  def __len__(self) -> int:
    """Returns how many there are."""
    return len(self._blocks)

  def unigram(self) -> np.ndarray:
    """Returns the count of each id in these very blocks, [vocab] int64: those of the stream are not known."""
    counts = np.bincount(self._blocks.ravel(), minlength=self.vocabulary.size)
    counts[self.vocabulary.special_ids["pad"]] = 0
    return counts

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns blocks [start, stop), no more than there are, [at most stop - start, length] int32."""
    return self._blocks[start:stop]

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns, as `rows`, the blocks with these numbers, but those that there are not."""
    return self._blocks[[number for number in numbers if number < len(self)]]
