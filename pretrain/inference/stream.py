"""Computes an output from rows; the next rows are read and tokenised while the devices compute."""

import argparse
import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from data import output_files, progress, rows
from data.errors import counted
from data.rows import Row
from data.rows.read import STANDARD_INPUT

logger = logging.getLogger(__name__)

Prepare = Callable[[list[Row]], Any]
Compute = Callable[[list[Row], Any], Sequence[dict[str, Any]]]
BATCHES_OF_PART = 32  # batches of a part, whose rows are sorted by length and computed together
MAX_CHARACTERS = 4 << 20  # in the rows of a part, so that memory does not depend on the length of texts


def cut(given: Iterable[Row], most: int) -> Iterator[list[Row]]:
  """Cuts rows into parts of at most `most` rows, fewer if texts are long; depends only on the rows."""
  part: list[Row] = []
  characters = 0
  for row in given:
    part.append(row)
    characters += sum(len(value) for value in row.fields.values() if isinstance(value, str))
    if len(part) == most or characters >= MAX_CHARACTERS:
      yield part
      part, characters = [], 0
  if part:
    yield part


def answer(
  path: str,
  prepare: Prepare,
  compute: Compute,
  *,
  batch_size: int,
  total: int,
  write: Callable[[Sequence[dict[str, Any]]], object] = lambda results: None,
) -> tuple[int, float]:
  """Computes the results of all rows of a file; returns the number of rows, and rows per second.

  Args:
    prepare: converts a part's rows to the second argument of `compute`; called in another thread.
    compute: returns a dict for each row of the part, in order.
    total: number of rows, for the remaining time; 0 if unknown.
    write: gets what `compute` returned, part by part.
  """
  prepared = ((part, prepare(part)) for part in cut(rows.read(path), BATCHES_OF_PART * batch_size))
  done, shown = 0, progress.Progress(total)
  # No thread reads ahead from a pipe, because it could not be stopped.
  for part, inputs in prepared if path == STANDARD_INPUT else _ahead(prepared):
    write(compute(part, inputs))
    done += len(part)
    shown.update(done)
  return done, shown.close(done)


def answer_file(
  asked: argparse.Namespace,
  form: output_files.Form,
  prepare: Prepare,
  compute: Compute,
  summary: Callable[[], tuple[str, str, int, int]],
  *,
  total: int,
) -> None:
  """Computes a result for each row of --input and writes it to --output ('-' or '': standard output).

  At the end `summary` returns a noun for a row's answer, more words, the number of truncated rows, and their
  length. `total` is as for `answer`.
  """
  name, sizes = asked.output, {"batch_size": asked.batch_size, "total": total}
  with output_files.opened(name, form) as write:
    done, speed = answer(asked.input, prepare, compute, **sizes, write=write)
  noun, what, count, length = summary()
  where = "standard output: " if name == "-" else name and f"{name}: "
  cut_rows = f", {count:,} cut to {length} tokens" if count else ""
  logger.info(f"{where}{counted(done, noun)} {what}{cut_rows}, {speed:,.1f} rows/s")


def _ahead(items: Iterator[tuple[list[Row], Any]]) -> Iterator[tuple[list[Row], Any]]:
  """Yields the items of an iterator, while a thread already computes the next item."""
  with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="rows") as pool:
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
      coming = pool.submit(next, items, None)
      yield item
