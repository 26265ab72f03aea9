"""Collects the log lines of the project, for tests."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from data import progress


class _Listener(logging.Handler):
  def __init__(self, say: Callable[[str], object]) -> None:
    super().__init__()
    self._say = say

  def emit(self, record: logging.LogRecord) -> None:
    if record.name.partition(".")[0] in progress.OURS:
      self._say(self.format(record))


@contextlib.contextmanager
def heard(say: Callable[[str], object]) -> Iterator[None]:
  """Calls `say` with every line that the project logs within the block; what it raises, logging raises."""
  listener, loggers = _Listener(say), [logging.getLogger(name) for name in progress.OURS]
  levels = [logger.level for logger in loggers]
  logging.root.addHandler(listener)
  for logger in loggers:
    logger.setLevel(logging.INFO)
  try:
    yield
  finally:
    logging.root.removeHandler(listener)
    for logger, level in zip(loggers, levels, strict=True):
      logger.setLevel(level)
