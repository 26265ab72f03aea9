"""Ends a process at once, with an exit code and a message, even if threads are blocked. Imports no JAX."""

import contextlib
import os
import sys
import threading

from data import errors
from data.command import STOPPED
from data.errors import UserError


def outcome(error: BaseException) -> tuple[int, str]:
  """Returns the exit code and the message of an error that ends a process."""
  if isinstance(error, UserError):
    return error.exit_code, str(error)
  if isinstance(error, KeyboardInterrupt):
    return STOPPED, "stopped before training began"
  return 1, errors.named_reason(error)


def end_process(code: int, line: str) -> None:
  """Prints a last line and ends this process, without waiting for other threads or a reader of the line."""
  with contextlib.suppress(OSError, ValueError):
    print(line if code == STOPPED else f"error: {line}", file=sys.stderr, flush=True)
  end_now(code)


def end_later(seconds: float, code: int, line: str) -> threading.Timer:
  """Returns a timer that ends this process after `seconds`, unless it is cancelled."""
  timer = threading.Timer(seconds, lambda: end_process(code, line))
  timer.daemon = True
  timer.start()
  return timer


def end_now(code: int) -> None:
  """Ends this process at once; it flushes standard output and runs no other cleanup."""
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
  os._exit(code)
