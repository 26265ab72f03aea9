"""The child process of `data.feed.client`, which reads a seqio Task or Mixture for a trainer.

It writes messages of `data.feed.messages` to stdout: first facts about the Task and its held-out blocks. When
a line on stdin names the first batch, it sends the speed of reading and then all batches. It ends when its
stdin closes.
"""

import argparse
import hashlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from data import command, tfds_reader
from data.feed import messages
from data.prepare import packing

MEASURED_SECONDS = 2.0  # of reading before the speed is reported


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags."""
  parser = command.Parser(prog="python -m data.feed", description=__doc__)
  for name, default in (("source", ""), ("module", ""), ("text_field", "text")):
    parser.add_argument(f"--{name}", default=default)
  parser.add_argument("--tfds_directory", default="", bucket=command.OPENED)
  parser.add_argument("--vocabulary", default="", bucket=command.FETCHED)
  parser.add_argument("--packing", choices=packing.MODES, default="complete")
  for name in ("length", "seed", "batch_size", "heldout"):
    parser.add_argument(f"--{name}", type=int, required=True)
  parser.add_argument("--download", action="store_true")
  return parser.parse_args(argv)


def serve(argv: Sequence[str] | None) -> None:
  """Sends a Task's facts, held-out blocks and batches until stdin closes; errors as of `stream.Stream`."""
  # The trainer decides when to stop: after a signal it may still need batches to finish its step.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  asked = parse(argv)
  pipe = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # a user's module may print, and stdout carries the messages
  begin: queue.Queue[int] = queue.Queue()
  threading.Thread(target=_listen, args=(begin,), daemon=True).start()
  tfds_reader.import_seqio()
  from data.feed.stream import Stream

  stream = Stream(asked)
  heldout = stream.heldout(asked.heldout)
  messages.send(pipe, {"facts": stream.facts(), **stream.described()}, heldout)
  first = begin.get()
  number, chunks = stream.chunks(first * asked.batch_size)
  for content, rows in batches(chunks, asked.batch_size, number // asked.batch_size, first):
    messages.send(pipe, content, rows)


def _listen(begin: queue.Queue[int]) -> None:
  for line in sys.stdin:
    begin.put(json.loads(line))
  os._exit(0)  # the trainer has ended, or closed the feed


def batches(
  chunks: Iterable[np.ndarray], size: int, number: int, first: int
) -> Iterator[tuple[dict, np.ndarray | None]]:
  """Yields messages for the trainer: the reading speed, then batches; `chunks` begin at batch `number`.

  The speed is {"blocks_per_second", "read": the next batch}. A batch is {"number", "before": the sha256 of
  all ids before it, "sha256": the same including its own}, with its rows. Batches before `first` are read but
  not sent.
  """
  digest, rest, waiting = hashlib.sha256(), [], []
  begun, blocks, is_told = 0.0, 0, False
  for chunk in chunks:
    now = time.perf_counter()
    blocks += len(chunk) if begun else 0  # the first chunk includes the start of TensorFlow
    begun = begun or now
    rest.append(chunk)
    cut = sum(map(len, rest)) // size
    if cut:
      whole = np.concatenate(rest)
      rest = [whole[cut * size :]]
      for rows in np.split(whole[: cut * size], cut):
        before = digest.hexdigest()
        digest.update(rows.astype("<i4").tobytes())
        if number >= first:
          waiting.append(({"number": number, "before": before, "sha256": digest.hexdigest()}, rows))
        number += 1
    if not is_told and blocks and now - begun >= MEASURED_SECONDS:
      is_told = True
      yield {"blocks_per_second": blocks / (now - begun), "read": number}, None
    if is_told:
      yield from waiting
      waiting = []


if __name__ == "__main__":
  code = command.exit_code(lambda: serve(None), stopped="")
  sys.stderr.flush()
  os._exit(code)  # at a normal exit, TensorFlow threads that still read ahead would abort
