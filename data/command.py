"""Shared parts of all commands: flags, error messages, exit codes, child processes."""

import argparse
import contextlib
import importlib.metadata
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from data import errors, fetched, files, log_lines

# How a flag of an input treats an address (s3://..., gs://...) instead of a path; all others refuse it.
FETCHED = "fetched"  # the file or folder is downloaded, and the flag becomes the path of the copy
OPENED = "opened"  # the flag keeps the address; the reader downloads the files that it needs

STOPPED = 75  # exit code after a requested stop: everything is saved, and the same command resumes

_ROOT = pathlib.Path(__file__).parent
# Bytes for `os.write`: a signal handler must not use print, which it may have interrupted.
TOO_LATE = b"the request to stop came too late: this command was ending by itself\n"
_ERROR = "error:"  # begins the message with which a command fails
_PARENT = "TEXT_ENCODER_PARENT"  # environment variable: process id of the command that started this one


class Parser(argparse.ArgumentParser):
  """A flag parser whose errors suggest the closest known flags and exit with code 2.

  Its help keeps the line breaks of description and epilog.
  """

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
    refuse_other_locale(sys.argv[1:] if args is None else args)
    parsed = super().parse_args(args, namespace)
    quiet, verbose = (vars(parsed).pop(name, False) for name in ("quiet", "verbose"))
    if quiet and verbose:
      raise errors.ConfigError(log_lines.TOGETHER)
    if quiet or verbose:  # a command within a command leaves the levels
      log_lines.choose(quiet=quiet, verbose=verbose)
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

  def _commands(self) -> list[argparse._SubParsersAction]:
    return [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]

  def error(self, message: str) -> NoReturn:
    parsers = [self, *(parser for action in self._commands() for parser in action.choices.values())]
    known = [name for parser in parsers for action in parser._actions for name in action.option_strings]
    wrong = re.findall(r"--\w+", message) if message.startswith("unrecognized") else []
    hints = "".join(errors.did_you_mean(flag, known, most=1) for flag in wrong)
    raise errors.ConfigError(message + (hints or f"; see `{self.prog} --help`"))


def refuse_other_locale(arguments: Sequence[str]) -> None:
  """Raises ConfigError if the locale is not UTF-8 and an argument, or this folder's name, is not ASCII.

  Libraries encode paths as UTF-8: they would look for files with other names, or fail.
  """
  encoding = sys.getfilesystemencoding()
  other = next((text for text in [*arguments, os.getcwd()] if not text.isascii()), None)
  if encoding != "utf-8" and other is not None:
    shown = os.fsencode(other).decode("utf-8", "backslashreplace")
    raise errors.ConfigError(
      f"{shown!a}: not ASCII, and this shell's locale is not UTF-8 ({encoding}); run this first:\n"
      "  export LC_ALL=C.UTF-8"
    )


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
  """Lets `end` handle signals within the block; when the parent command ends, this process gets SIGTERM."""
  if threading.current_thread() is not threading.main_thread():  # Python allows signal handlers only there
    yield
    return
  # A shell starts background commands with Ctrl-C ignored, and that must stay so.
  heard = [signal.SIGTERM, signal.SIGINT][: 1 + (signal.getsignal(signal.SIGINT) != signal.SIG_IGN)]
  before = {number: signal.signal(number, end.hear) for number in heard}
  parent = int(os.environ.get(_PARENT, 0))
  if parent == os.getppid():
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, signal.SIG_IGN if is_last else handler)


def _end_with(parent: int) -> None:
  while os.getppid() == parent:
    time.sleep(0.5)
  os.kill(os.getpid(), signal.SIGTERM)


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
  the block; `quiet` and `verbose` choose their level. Ctrl-C and SIGTERM print `stopped`; so does the end of
  a parent that used `run_child`. With `debug` a user's error keeps its traceback. `is_last`: the process ends
  with the block, and no later signal may change its exit code.
  """
  end = End()
  with log_lines.shown(quiet=quiet, verbose=verbose), _failed_saves_are_silent(is_last=is_last):
    try:
      with _terminable(end, is_last=is_last):
        yield end
    except KeyboardInterrupt as interrupt:
      print(stopped, file=sys.stderr)
      end.code = STOPPED if isinstance(interrupt, _Terminated) else 130
    except (errors.UserError, OSError) as error:
      known = error if isinstance(error, errors.UserError) else _full_output(error)
      if debug or known is None:
        raise
      print(f"{_ERROR} {known}", file=sys.stderr, flush=True)
      end.code = known.exit_code


@contextlib.contextmanager
def _failed_saves_are_silent(*, is_last: bool) -> Iterator[None]:
  """Suppresses what libraries print about a failed save, because the command reports it itself.

  Orbax and asyncio log it. Tensorstore and Python print tracebacks of writes that never begin, or that end
  after orbax's event loop. So if the process ends with the block, the messages stay suppressed.
  """

  def is_news(record: logging.LogRecord) -> bool:
    is_of_save = "orbax" in record.pathname or "never retrieved" in record.getMessage()
    return record.levelno < logging.WARNING or not is_of_save  # less is shown with --verbose alone

  def print_news(unraisable: "sys.UnraisableHookArgs") -> None:
    if "Event loop is closed" not in str(unraisable.exc_value):
      print_any(unraisable)

  # Before `getLogger` makes its logger: a plain one's records would not name the file that called absl.
  import absl.logging  # noqa: F401

  print_any = sys.unraisablehook
  with contextlib.ExitStack() as restored:
    restored.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", "coroutine 'async_serialize.* was never awaited", RuntimeWarning)
    for logger in (logging.getLogger("absl"), logging.getLogger("asyncio")):
      logger.addFilter(is_news)
      restored.callback(logger.removeFilter, is_news)
    restored.callback(setattr, sys, "unraisablehook", print_any)
    sys.unraisablehook = print_news
    yield
    if is_last:
      restored.pop_all()


def _full_output(error: OSError) -> errors.StorageError | None:
  """Returns a StorageError if `error` means a full disk, also if printing filled it; else None.

  Buffered output is discarded, because Python would try to print it again at exit, and fail.
  """
  if not errors.is_full_disk(error):
    return None
  if error.filename is not None:
    line = f"{error.filename}: cannot be written ({errors.reason(error)})"
    return errors.StorageError(f"{line}; free space and run the same command again")
  with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
    os.dup2(nowhere.fileno(), sys.stdout.fileno())
  return errors.StorageError(
    f"a file, or what this command prints, cannot be written ({errors.reason(error)}); free space and run "
    "the same command again"
  )


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


def exit_code(function: Callable[[], int | None], *, stopped: str, debug: bool = False) -> int:
  """Calls the work of a command within `one_line_errors`; returns the exit code of the process."""
  with one_line_errors(stopped=stopped, debug=debug) as end:
    end.code = function() or 0
  return end.code


def run(function: Callable[[], None]) -> int:
  """Runs a command that writes files; returns its exit code after printing an error as a message."""

  def with_one_line_errors() -> None:
    try:
      function()
    except errors.UserError as error:
      raise type(error)(_tidied(str(error))) from error
    except Exception as error:
      # Errors of reading became DataErrors where the file is known, so any other OSError is about writing.
      is_full = errors.is_full_disk(error)
      if not (is_full or isinstance(error, OSError)):
        raise
      hint = "free some space" if is_full else "check the place and its rights"
      filename = getattr(error, "filename", None)
      file = f"{filename}: " if filename else ""
      raise errors.StorageError(
        f"{file}{errors.reason(error)}; {hint} and run the same command again"
      ) from error

  return exit_code(with_one_line_errors, stopped="stopped; run the same command again")


def _tidied(message: str) -> str:
  """Joins the lines of a message, except suggested commands, which are indented by two spaces."""
  return "\n  ".join(" ".join(part.split()) for part in re.split(r"\n  (?=\S)", message))


def run_parsed(
  parse: Callable[[Sequence[str] | None], argparse.Namespace],
  function: Callable[[argparse.Namespace], None],
  argv: Sequence[str] | None,
) -> int:
  """Runs `function` with the parsed flags; returns the exit code."""
  return run(lambda: function(parse(argv)))


def run_child(
  arguments: Sequence[str], *, relay: bool, log: TextIO | None = None, **options
) -> tuple[int, str]:
  """Runs a command of this project as a child process; `options` go to `subprocess.Popen`.

  The child ends when this process ends, even if it is killed. With `relay` the child's stderr is logged as it
  is written, except its error message. All output is also written to the file `log`. Returns the exit code,
  and on one line the error message: the last line of stderr with the indented lines after it, or how the
  child ended if it was killed or wrote nothing.
  """
  last = ""
  if log:
    options["stdout"] = log
  options["env"] = options.get("env", os.environ) | {_PARENT: str(os.getpid())}
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
          log_lines.relay(line.rstrip())
    except KeyboardInterrupt:
      child.terminate()  # a terminal sends Ctrl-C to children too, but nobody sends them SIGTERM
      raise
  if child.returncode < 0:
    return child.returncode, f"killed by signal {-child.returncode}"
  return child.returncode, last.removeprefix(_ERROR).strip() or f"exit code {child.returncode}"
