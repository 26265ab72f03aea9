"""Log lines of a command on stderr: one handler, and the levels that `--quiet` and `--verbose` choose."""

import contextlib
import logging
import sys
from collections.abc import Iterator

from tqdm import tqdm

# Loggers of this project; a module that runs as a program logs as `__main__`. All others are of libraries.
OURS = ("__main__", "configs", "data", "finetune", "lab", "pretrain")
TOGETHER = "--quiet and --verbose are given together; give one of them"
_PREFIX = "warning: "


class _Handler(logging.Handler):
  """Writes log messages to stderr, those of level WARNING and above with 'warning: ' before them."""

  def emit(self, record: logging.LogRecord) -> None:
    try:
      line = (_PREFIX if record.levelno >= logging.WARNING else "") + self.format(record)
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
  levels = {logger: logger.level for logger in (logging.root, *map(logging.getLogger, OURS))}
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
  for name in OURS:
    logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


def relay(line: str) -> None:
  """Logs a line that a child process wrote to its stderr, at the level that it had there."""
  is_warning = line.startswith(_PREFIX)
  logging.getLogger(__name__).log(
    logging.WARNING if is_warning else logging.INFO, "%s", line.removeprefix(_PREFIX)
  )
