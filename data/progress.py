"""Progress of long work on stderr: a bar where somebody watches, a plain line now and then otherwise."""

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
  """Whether somebody watches and wants to: bars are for them, plain lines for logs."""
  return sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)


def bar(unit: str, *, is_shown: bool, **options: Any) -> tqdm:
  """A bar on stderr that fits the width of the terminal, or nothing if not `is_shown`; options are tqdm's."""
  return tqdm(unit=unit, disable=not is_shown, dynamic_ncols=True, **options)


def duration(seconds: float) -> str:
  """Seconds as a user reads them: '4:05', '1:02:03' with hours, '2 d 3 h' with days."""
  minutes, seconds = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  if days:
    return f"{days} d {hours} h"
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def track(items: Iterable[Item], *, name: str, total: int) -> Iterator[Item]:
  """Yields `items`, shows how many of `total` are done, and reports at the end how long it took."""
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
