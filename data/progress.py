"""Progress of long work on stderr: a bar on a terminal, plain lines every few seconds in a log."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0


def is_watched() -> bool:
  """Returns whether stderr is a terminal that shows progress: then bars are used, else plain lines."""
  return sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)


def bar(unit: str, *, is_shown: bool, **options: Any) -> tqdm:
  """Returns a tqdm bar on stderr as wide as the terminal; it shows nothing unless `is_shown`."""
  return tqdm(unit=unit, disable=not is_shown, dynamic_ncols=True, **options)


def duration(seconds: float) -> str:
  """Returns seconds as text: '4:05', '1:02:03' with hours, '2 d 3 h' with days."""
  minutes, seconds = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  if days:
    return f"{days} d {hours} h"
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def track(items: Iterable[Item], *, name: str, total: int) -> Iterator[Item]:
  """Yields `items`, shows how many of `total` are done, and prints the time at the end."""
  begin = last = time.monotonic()
  if is_watched():
    import rich.console  # here: only a terminal needs it
    import rich.progress

    console = rich.console.Console(stderr=True)
    yield from rich.progress.track(items, name, total=total, console=console, transient=True)
  else:
    for done, item in enumerate(items, start=1):
      yield item
      if time.monotonic() - last > SECONDS_BETWEEN_LINES and done < total:
        logger.info(f"{name}: {done} of {total} parts")
        last = time.monotonic()
  logger.info(f"{name}: done in {time.monotonic() - begin:.1f} s")


class RowProgress:
  """Shows how many rows are done: a bar in a terminal, else a line now and then."""

  def __init__(self, total: int) -> None:
    """Begins with no row done of `total`; 0: their number is unknown."""
    self._total, self._begun = total, time.monotonic()
    self._last = self._begun
    watched = is_watched()
    self._bar = bar(" rows", is_shown=watched, total=total or None, unit_scale=True)
    self._says = not watched

  def update(self, rows: int) -> None:
    """Shows that `rows` are done."""
    self._bar.update(rows - self._bar.n)
    now = time.monotonic()
    if self._says and now - self._last > SECONDS_BETWEEN_LINES and rows != self._total:
      speed, self._last = rows / (now - self._begun), now
      of_all = f" of {self._total:,}" if self._total else ""
      left = f", {duration((self._total - rows) / speed)} left" if self._total else ""
      logger.info(f"{rows:,}{of_all} rows, {speed:,.0f} rows/s{left}")

  def close(self, rows: int) -> float:
    """Removes the bar; returns the rows per second of `rows` rows."""
    self._bar.close()
    return rows / max(time.monotonic() - self._begun, 1e-9)
