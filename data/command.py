"""Shared parts of all commands: flags, error messages, exit codes, child processes."""

import argparse
import contextlib
import importlib.metadata
import itertools
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from data import errors, fetched, files, programs, progress

# How a flag of an input treats an address (s3://..., gs://...) instead of a path; all others refuse it.
FETCHED = "fetched"  # the file or folder is downloaded, and the flag becomes the path of the copy
OPENED = "opened"  # the flag keeps the address; the reader downloads the files that it needs

STOPPED = 75  # exit code after a requested stop: everything is saved, and the same command resumes

_ROOT = pathlib.Path(__file__).parent
# Bytes for `os.write`: a signal handler must not use print, which it may have interrupted.
TOO_LATE = b"the request to stop came too late: this command was ending by itself\n"
_ERROR = "error:"  # begins the message with which a command fails


class Parser(argparse.ArgumentParser):
  """A flag parser whose errors suggest the closest known flags; its help keeps line breaks."""

  def __init__(self, **kwargs):
    self._buckets: dict[str, tuple[str, Callable]] = {}  # flag -> (FETCHED or OPENED; type)
    super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
    # Left out unless given, so that a subcommand's default does not replace what stands before its name.
    switch = {"action": "store_true", "default": argparse.SUPPRESS}
    self.add_argument("--quiet", help="show warnings and errors only", **switch)
    self.add_argument("--verbose", help="show more, and what libraries log", **switch)

  def add_argument(self, *names, bucket: str = "", **options) -> argparse.Action:
    """Adds a flag as argparse does; the help also shows its default, unless that is empty.

    `bucket` says how an address is treated: FETCHED or OPENED; without it an address is an error.
    """
    default, text = options.get("default"), options.get("help", "")
    is_nothing = default is None or default is False or default in ("", [], argparse.SUPPRESS)
    if not is_nothing and "default" not in text:
      options["help"] = f"{text} (default: {default})".strip()
    kind = options.get("type") or str
    if bucket and kind is not str:
      options["type"] = lambda text: text if files.is_address(text) else kind(text)
    action = super().add_argument(*names, **options)
    if bucket:
      self._buckets[action.dest] = (bucket, kind)
    return action

  def parse_args(self, args=None, namespace=None):
    """Parses as argparse does; raises ConfigError for unsupported addresses, fetches FETCHED ones.

    --quiet and --verbose set the levels of the log and are not in the result.
    """
    words = list(sys.argv[1:] if args is None else args)
    self._refuse_unknown(words)
    parsed = super().parse_args(words, namespace)
    quiet, verbose = (vars(parsed).pop(name, False) for name in ("quiet", "verbose"))
    if quiet and verbose:
      raise errors.ConfigError(progress.TOGETHER)
    if quiet or verbose:  # a command within a command leaves the levels
      progress.choose(quiet=quiet, verbose=verbose)
    chosen = [action.choices[getattr(parsed, action.dest)] for action in self._commands()]
    allowed = {name: entry for parser in (self, *chosen) for name, entry in parser._buckets.items()}

    def local(name: str, value: Any) -> Any:
      if isinstance(value, list | tuple):
        return [local(name, part) for part in value]
      problem = files.address_problem(f"--{name}", value)
      if problem is not None and name not in allowed:
        raise errors.ConfigError(problem)
      if problem is None or allowed[name][0] != FETCHED:
        return value
      return allowed[name][1](fetched.local(value, flag=f"--{name}"))

    for name, value in vars(parsed).items():
      setattr(parsed, name, local(name, value))
    return parsed

  def _refuse_unknown(self, words: Sequence[str]) -> None:
    """Raises ConfigError for a mistyped flag; argparse would first say that the right one is missing."""
    parsers = [self, *(parser for action in self._commands() for parser in action.choices.values())]
    known = [name for parser in parsers for action in parser._actions for name in action.option_strings]
    for word in itertools.takewhile(lambda word: word != "--", words):
      flag = re.match(r"--\w[\w.-]*(?==|$)", word)
      if flag and flag[0] not in known and (hint := errors.did_you_mean(flag[0], known, most=1)):
        raise errors.ConfigError(f"{flag[0]}: no such flag{hint}")

  def format_help(self) -> str:
    """Returns the help text, which names commands as the user started this one."""
    return programs.as_started(super().format_help())

  def error(self, message: str) -> NoReturn:
    """Raises ConfigError instead of exiting."""
    raise errors.ConfigError(f"{message}; see `{self.prog} --help`")

  def _commands(self) -> list[argparse._SubParsersAction]:
    return [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]


class End:
  """The exit code of a command, and how it reacts to signals."""

  code = 0  # exit code of the process
  _is_settled = _is_asked = False

  def settle(self, is_asked: bool) -> None:
    """Marks the command as ending: the next signal only prints a line, the one after it kills.

    `is_asked`: whether a signal has already asked the command to stop; then the next one kills.
    """
    self._is_asked, self._is_settled = is_asked, True

  def hear(self, number: int, _) -> None:
    """Handles SIGTERM and SIGINT: raises an exception in the command, unless `settle` was called."""
    if not self._is_settled:
      raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt
    if self._is_asked:
      signal.signal(number, signal.SIG_DFL)
      os.kill(os.getpid(), number)
    else:
      self._is_asked = True
      os.write(2, TOO_LATE)


class _Terminated(KeyboardInterrupt):
  """SIGTERM as an exception: like Ctrl-C it unwinds the stack, so that files are removed and children end."""


@contextlib.contextmanager
def _terminable(end: End, *, is_last: bool) -> Iterator[None]:
  """Lets `end` handle signals within the block."""
  if threading.current_thread() is not threading.main_thread():  # Python allows signal handlers only there
    yield
    return
  # A shell starts background commands with Ctrl-C ignored, and that must stay so.
  heard = [signal.SIGTERM, signal.SIGINT][: 1 + (signal.getsignal(signal.SIGINT) != signal.SIG_IGN)]
  before = {number: signal.signal(number, end.hear) for number in heard}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, signal.SIG_IGN if is_last else handler)


def commit() -> str:
  """Returns the short hash of this program's commit, with '+' if files changed since; '' outside git."""
  if not (_ROOT.parent / ".git").exists():  # installed: git would describe a repository around site-packages
    return ""
  described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
  with contextlib.suppress(OSError):  # no git
    return subprocess.run(described, cwd=_ROOT, capture_output=True, text=True).stdout.strip()
  return ""


def versions(packages: Sequence[str]) -> dict[str, str]:
  """Returns {name: version} of installed packages."""
  return {name: importlib.metadata.version(name) for name in packages}


@contextlib.contextmanager
def one_line_errors(
  *, stopped: str, debug: bool = False, is_last: bool = False, quiet: bool = False, verbose: bool = False
) -> Iterator[End]:
  """Runs the work of a command in the block; errors become a message and an exit code.

  Yields an `End`, which has the exit code after the block; the block may set it. Log lines are shown within
  the block; `quiet` and `verbose` choose their level. Ctrl-C and SIGTERM print `stopped`. With `debug` a
  user's error keeps its traceback. `is_last`: the process ends with the block, and no later signal may change
  its exit code.
  """
  end = End()
  with progress.shown(quiet=quiet, verbose=verbose):
    try:
      with _terminable(end, is_last=is_last):
        yield end
    except KeyboardInterrupt as interrupt:
      print(stopped, file=sys.stderr)
      end.code = STOPPED if isinstance(interrupt, _Terminated) else 130
    except Exception as error:
      known = error if isinstance(error, errors.UserError) else _not_written(error)
      if debug or known is None:
        raise
      first, *ways_out = re.split(r"\n(?=  )", programs.as_started(str(known)))
      print("\n".join([f"{_ERROR} {' '.join(first.split())}", *ways_out]), file=sys.stderr, flush=True)
      end.code = known.exit_code


def _not_written(error: Exception) -> errors.StorageError | None:
  """Returns a StorageError if `error` means that something cannot be written; None for other errors."""
  # Errors of reading became DataErrors where the file is known, so any other OSError is about writing.
  is_full = errors.is_full_disk(error)
  if not is_full and not isinstance(error, OSError):
    return None
  file = getattr(error, "filename", None)
  if is_full and file is None:  # perhaps of what is printed: Python would print it again at exit, and fail
    with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
      os.dup2(nowhere.fileno(), sys.stdout.fileno())
  hint = "free some space" if is_full else "check the place and its rights"
  what = f"{file}: cannot be written" if file else "a file, or what this command prints, cannot be written"
  return errors.StorageError(f"{what} ({errors.reason(error)}); {hint} and run the same command again")


def names(listed: str) -> list[str]:
  """Returns the names in a comma-separated flag; none for ''."""
  return [name for name in listed.split(",") if name]


def refuse_below_one(asked: argparse.Namespace, *flags: str) -> None:
  """Raises ConfigError if one of these integer flags is below 1."""
  for flag in flags:
    if getattr(asked, flag) < 1:
      raise errors.ConfigError(f"--{flag}={getattr(asked, flag)}: expected at least 1")


def refuse_empty(asked: argparse.Namespace, *flags: str) -> None:
  """Raises ConfigError if one of these flags with a list of names is empty (an unset shell variable)."""
  for flag in flags:
    if not names(getattr(asked, flag)):
      raise errors.ConfigError(f"--{flag} is empty; name a checkpoint\n  --{flag}=WORKDIR")


def run(
  function: Callable[[], int | None],
  *,
  stopped: str = "stopped; run the same command again",
  debug: bool = False,
) -> int:
  """Calls the work of a command within `one_line_errors`; returns the exit code of the process."""
  with one_line_errors(stopped=stopped, debug=debug) as end:
    end.code = function() or 0
  return end.code


def run_child(
  arguments: Sequence[str], *, relay: bool, log: TextIO | None = None, **options
) -> tuple[int, str]:
  """Runs a command of this project as a child process; `options` go to `subprocess.Popen`.

  The child gets SIGTERM when this command is stopped. With `relay` the child's stderr is logged as it
  is written, except its error message. All output is also written to the file `log`. Returns the exit code,
  and on one line the error message: the last line of stderr with the indented lines after it, or how the
  child ended if it was killed or wrote nothing.
  """
  last = ""
  if log:
    options["stdout"] = log
  with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, errors="replace", **options) as child:
    assert child.stderr is not None
    try:
      for line in child.stderr:
        is_way = last.startswith(_ERROR) and line.startswith("  ")  # a way out, see `UserError`
        last = f"{last} {line.strip()}" if is_way else line.strip() or last
        if log:
          print(line, end="", file=log, flush=True)
        # The caller's own message repeats the error.
        if relay and line.strip() and not (is_way or line.startswith(_ERROR)):
          progress.relay(line.rstrip())
    except KeyboardInterrupt:
      child.terminate()  # a terminal sends Ctrl-C to children too, but nobody sends them SIGTERM
      raise
  if child.returncode < 0:
    return child.returncode, f"killed by signal {-child.returncode}"
  return child.returncode, last.removeprefix(_ERROR).strip() or f"exit code {child.returncode}"


def start_worker() -> None:
  """Makes a worker of a pool exit when its parent process ends; otherwise it would wait for work forever."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # else Ctrl-C prints a traceback of each worker

  def wait() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child process"
    parent.join()
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()
