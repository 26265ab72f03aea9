"""Entry points of this package: flags, and errors of one line with an exit code."""

import argparse
import difflib
import errno
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from data import errors

_ERROR = "error:"  # begins the line that a command ends with when it fails


class Parser(argparse.ArgumentParser):
  """Refuses wrong flags with one line that names the nearest known ones, and exit code 2."""

  def __init__(self, **kwargs):
    super().__init__(allow_abbrev=False, **kwargs)

  def error(self, message: str) -> NoReturn:
    known = [name for action in self._all_actions() for name in action.option_strings]
    wrong = re.findall(r"--\w+", message) if message.startswith("unrecognized") else []
    near = [match for flag in wrong for match in difflib.get_close_matches(flag, known, n=1)]
    hint = f"; did you mean {', '.join(near)}?" if near else f"; see `{self.prog} --help`"
    raise errors.ConfigError(message + hint)

  def _all_actions(self) -> list[argparse.Action]:
    actions = list(self._actions)
    for action in self._actions:
      if isinstance(action, argparse._SubParsersAction):
        for parser in action.choices.values():
          actions += parser._actions
    return actions


def run(function: Callable[[], None]) -> int:
  """Calls `function`; prints a user's error as one line to stderr and returns its exit code."""
  try:
    function()
  except errors.UserError as error:
    return _report(error)
  except OSError as error:
    # Reading errors were turned into DataErrors where the file is known; what is left is about writing.
    hint = (
      "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the place and its rights"
    )
    place = f"{error.filename}: " if error.filename else ""
    return _report(
      errors.StorageError(f"{place}{error.strerror or error}; {hint} and run the same command again")
    )
  except KeyboardInterrupt:
    print("stopped; run the same command again to go on", file=sys.stderr)
    return 130
  return 0


def _report(error: errors.UserError) -> int:
  print(f"{_ERROR} {' '.join(str(error).split())}", file=sys.stderr, flush=True)
  return error.exit_code


def run_child(arguments: Sequence[str], *, relay: bool, **options) -> tuple[int, str]:
  """Runs a command of this project in a process of its own.

  Args:
    arguments: the command.
    relay: whether what it writes to stderr is shown as it comes, but for its error.
    **options: more arguments of `subprocess.Popen`.

  Returns:
    Its exit code, and the error it reported: its last line on stderr, or the code if it wrote none.
  """
  last = ""
  with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, errors="replace", **options) as child:
    assert child.stderr is not None
    for line in child.stderr:
      last = line.strip() or last
      if relay and line.strip() and not line.startswith(_ERROR):  # the caller's own message holds that one
        print(line, end="", file=sys.stderr, flush=True)
  return child.returncode, last.removeprefix(_ERROR).strip() or f"exit code {child.returncode}"
