"""Computes an output from rows; the next rows are read and tokenised while the devices compute."""

import argparse
import concurrent.futures
import contextlib
import logging
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from data import progress, rows
from data.errors import counted
from data.output.columns import Survey
from data.output.formats import Format
from data.output.parts import Part, Parts, Printed, cut
from data.rows import Row
from data.rows.read import STANDARD_INPUT

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Prepare = Callable[[list[Row]], Any]
Compute = Callable[[list[Row], Any], Sequence[dict[str, Any]]]
BATCHES_OF_PART = 32  # batches of a part, whose rows are sorted by length, computed and stored together


def answer(
  path: str, output: Parts | Printed, prepare: Prepare, compute: Compute, *, batch_size: int, total: int
) -> float:
  """Computes and writes the results of all rows that `output` lacks; returns the rows per second.

  Args:
    prepare: converts a part's rows to the second argument of `compute`; called in another thread.
    compute: returns a dict for each row of the part, in order.
    total: number of rows, for the remaining time; 0 if unknown.
  """
  parts = output.undone(cut(rows.read(path), BATCHES_OF_PART * batch_size))
  undone = ((part, prepare(part.rows)) for part in parts)
  computed, shown = 0, progress.RowProgress(total)
  # No thread reads ahead from a pipe, because it could not be stopped.
  for part, prepared in undone if path == STANDARD_INPUT else _ahead(undone):
    output.add(part, compute(part.rows, prepared))
    computed += len(part.rows)
    shown.update(computed, output.rows)
  output.join()
  return shown.close(computed)


def answer_file(
  asked: argparse.Namespace,
  form: Callable[[], Format],
  survey: Survey,
  identity: Mapping[str, Any],
  prepare: Prepare,
  compute: Compute,
  summary: Callable[[], tuple[str, str, int, int]],
) -> None:
  """Computes a result for each row of --input and writes it to --output ('-' or '': standard output).

  `form` and `identity` are arguments of `Parts`; input, rows and batch size are added to `identity`. At the
  end `summary` returns a noun for a row's answer, more words, the number of truncated rows, and their length.
  """
  name, opened, total = asked.output, contextlib.nullcontext(Printed(form())), survey.rows
  # A pipe is another one in each command, so what a killed command answered is of other rows.
  digest = secrets.token_hex() if asked.input == STANDARD_INPUT else survey.digest
  rows_asked = {"input": asked.input, "rows": digest, "batch_size": asked.batch_size}
  if name not in ("", "-"):
    opened = Parts(pathlib.Path(name), {**identity, **rows_asked}, form()).opened()
  with opened as output:
    speed = answer(asked.input, output, prepare, compute, batch_size=asked.batch_size, total=total)
  if output.was_finished:
    logger.info(f"{name} is complete: {counted(total, 'row')} answered before")
    return
  noun, what, count, length = summary()
  where = "standard output: " if name == "-" else name and f"{name}: "
  cut_rows = f", {count:,} cut to {length} tokens" if count else ""
  logger.info(f"{where}{counted(output.rows, noun)} {what}{cut_rows}, {speed:,.1f} rows/s")


def _ahead(items: Iterator[tuple[Part, Any]]) -> Iterator[tuple[Part, Any]]:
  """Yields the items of an iterator, while a thread already computes the next item."""
  with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="rows") as pool:
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
      coming = pool.submit(next, items, None)
      yield item
