"""Log lines of a command on stderr, at the levels of `--quiet` and `--verbose`, and progress of long work."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from data import programs

logger = logging.getLogger(__name__)

# Loggers of this project; a module that runs as a program logs as `__main__`. All others are of libraries.
OURS = ("__main__", "configs", "data", "finetune", "lab", "pretrain")
_NOISY = ("absl", "asyncio")  # orbax warns by these of what is no fault, and its errors are raised too
TOGETHER = "--quiet and --verbose are given together; give one of them"
_PREFIX = "warning: "


class _Handler(logging.Handler):
  """Writes log messages to stderr, those of level WARNING and above with 'warning: ' before them."""

  def emit(self, record: logging.LogRecord) -> None:
    try:
      line = _PREFIX if record.levelno >= logging.WARNING else ""
      line += programs.as_started(self.format(record))
      if sys.stderr.isatty():
        tqdm.write(line, file=sys.stderr)  # above a progress bar
      else:
        print(line, file=sys.stderr, flush=True)
    except Exception:
      self.handleError(record)


@contextlib.contextmanager
def shown(*, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
  """Shows log lines on stderr within the block; a command in a command reuses the existing handler."""
  if any(isinstance(handler, _Handler) for handler in logging.root.handlers):
    yield
    return
  levels = {logger: logger.level for logger in (logging.root, *map(logging.getLogger, (*OURS, *_NOISY)))}
  # What a library's `basicConfig` installed would print every line once more.
  others = [handler for handler in logging.root.handlers if type(handler) is logging.StreamHandler]
  ours = _Handler()
  try:
    for handler in others:
      logging.root.removeHandler(handler)
    logging.root.addHandler(ours)
    choose(quiet=quiet, verbose=verbose)
    yield
  finally:
    logging.root.removeHandler(ours)
    for handler in others:
      logging.root.addHandler(handler)
    for logger, level in levels.items():
      logger.setLevel(level)


def choose(*, quiet: bool = False, verbose: bool = False) -> None:
  """Sets log levels: info of this project, warnings of libraries; less with `quiet`, more with `verbose`.

  It does nothing where no command shows lines: there the levels are the caller's.
  """
  if not any(isinstance(handler, _Handler) for handler in logging.root.handlers):
    return
  logging.root.setLevel(logging.INFO if verbose else logging.WARNING)
  for name in _NOISY:
    logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)
  for name in OURS:
    logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


def relay(line: str) -> None:
  """Logs a line that a child process wrote to its stderr, at the level that it had there."""
  is_warning = line.startswith(_PREFIX)
  logging.getLogger(__name__).log(
    logging.WARNING if is_warning else logging.INFO, "%s", line.removeprefix(_PREFIX)
  )


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
  """Yields `items`, shows how many of `total` are done, and logs the time at the end."""
  begin, shown = time.monotonic(), Progress(total, unit="part", name=name)
  for done, item in enumerate(items, start=1):
    yield item
    shown.update(done)
  shown.close(total)
  logger.info(f"{name}: done in {time.monotonic() - begin:.1f} s")


class Progress:
  """Shows how many rows or other units are done: a bar in a terminal, else a line now and then."""

  def __init__(self, total: int, *, unit: str = "row", name: str = "") -> None:
    """Begins with nothing done of `total`; 0: their number is unknown. `name` says what is done."""
    self._total, self._begun, self._unit = total, time.monotonic(), unit
    self._last, self._name = self._begun, f"{name}: " if name else ""
    shown = {"desc": name, "leave": False} if name else {}
    self._bar = bar(f" {unit}s", is_shown=is_watched(), total=total or None, unit_scale=True, **shown)

  def update(self, done: int) -> None:
    """Shows that `done` units are done."""
    self._bar.update(done - self._bar.n)
    now = time.monotonic()
    if self._bar.disable and now - self._last > SECONDS_BETWEEN_LINES and done != self._total:
      speed, self._last = done / (now - self._begun), now
      of_all = f" of {self._total:,}" if self._total else ""
      left = f", {duration((self._total - done) / speed)} left" if self._total else ""
      rate = f", {speed:,.0f} {self._unit}s/s" if speed >= 1 else ""
      logger.info(f"{self._name}{done:,}{of_all} {self._unit}s{rate}{left}")

  def close(self, done: int) -> float:
    """Removes the bar; returns the units per second of `done` units."""
    self._bar.close()
    return done / max(time.monotonic() - self._begun, 1e-9)
