"""From rows to a finished output: the next rows are read and tokenised while the devices compute."""

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from data import progress
from data.output.parts import Part, Parts, Printed, cut
from data.rows import Row

Item = TypeVar("Item")
BATCHES_OF_PART = 32  # rows of that many batches are sorted by length, computed and stored together


def answer(
  rows: Iterable[Row],
  output: Parts | Printed,
  prepare: Callable[[list[Row]], Any],
  compute: Callable[[list[Row], Any], Sequence[dict[str, Any]]],
  *,
  batch_size: int,
  total: int,
  reads_ahead: bool = True,
) -> float:
  """Answers all rows that `output` does not hold yet and joins it; returns rows per second of this call.

  Args:
    prepare: rows of a part to what `compute` takes beside them, called by another thread.
    compute: gives a dict for each row of the part, in order.
    total: number of rows, for the time left; 0: nobody knows.
    reads_ahead: False for a pipe, whose reader cannot be stopped.
  """
  undone = ((part, prepare(part.rows)) for part in output.undone(cut(rows, BATCHES_OF_PART * batch_size)))
  first, shown = output.rows, _Shown(output.rows, total)
  for part, prepared in _ahead(undone) if reads_ahead else undone:
    output.add(part, compute(part.rows, prepared))
    shown.update(output.rows)
  output.join()
  return shown.close(output.rows - first)


def _ahead(items: Iterator[tuple[Part, Any]]) -> Iterator[tuple[Part, Any]]:
  """The same items, the next one made by a thread meanwhile."""
  with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="rows") as pool:
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
      coming = pool.submit(next, items, None)
      yield item


class _Shown:
  """How far the work is: a bar where somebody watches, else a line now and then."""

  def __init__(self, first: int, total: int) -> None:
    self._first, self._total, self._begun = first, total, time.monotonic()
    self._last = self._begun
    watched = progress.is_watched()
    self._bar = progress.bar(" rows", is_shown=watched, initial=first, total=total or None, unit_scale=True)
    self._says = not watched

  def update(self, rows: int) -> None:
    self._bar.update(rows - self._bar.n)
    now = time.monotonic()
    if self._says and now - self._last > progress.SECONDS_BETWEEN_LINES and rows != self._total:
      speed, self._last = (rows - self._first) / (now - self._begun), now
      of_all = f" of {self._total:,}" if self._total else ""
      left = f", {progress.duration((self._total - rows) / speed)} left" if self._total else ""
      progress.say(f"{rows:,}{of_all} rows, {speed:,.0f} rows/s{left}")

  def close(self, rows: int) -> float:
    self._bar.close()
    return rows / max(time.monotonic() - self._begun, 1e-9)
