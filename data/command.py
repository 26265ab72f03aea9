"""Entry points of this package: flags, and errors of one line with an exit code."""

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
from typing import NoReturn, TextIO

from data import errors, files, log_lines
from data.buckets import copies, outputs

# What becomes of an address of a bucket that a flag is given instead of a path.
FETCHED = "fetched"  # the file or folder is brought here, and the flag is its path
OPENED = "opened"  # who reads it fetches what it needs
SENT = "sent"  # an output: see data.buckets.outputs

STOPPED = 75  # exit code after a requested stop with everything saved: start the same command again

_ROOT = pathlib.Path(__file__).parent
# Written by `os.write`: a signal may come between two halves of a print.
TOO_LATE = b"the request to stop came too late: this command was ending by itself\n"
_ERROR = "error:"  # begins the line that a command ends with when it fails
_PARENT = "TEXT_ENCODER_PARENT"  # process id of the command that started this one and waits for it


class Parser(argparse.ArgumentParser):
  """Refuses wrong flags with one line that names the nearest known ones, and exit code 2.

  Its help shows description and epilog as they are written.
  """

  def __init__(self, **kwargs):
    self._buckets: dict[str, tuple[str, Callable]] = {}  # what becomes of addresses, and the type
    super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
    # Left out unless given, so that a subcommand's default does not replace what stands before its name.
    switch = {"action": "store_true", "default": argparse.SUPPRESS}
    self.add_argument("--quiet", help="show warnings and errors only", **switch)
    self.add_argument("--verbose", help="show more, and what libraries log", **switch)

  def add_argument(self, *names, bucket: str = "", **options) -> argparse.Action:
    """As argparse's; the help also says what a flag is when it is left out, unless that is nothing.

    `bucket` says what becomes of an address: FETCHED, OPENED or SENT; without it an address is refused.
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
    """As argparse's, and refuses addresses where they cannot be; those that are FETCHED become paths.

    --quiet and --verbose set the levels of the log and are left out of what it returns.
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
    for name, value in vars(parsed).items():
      for text in value if isinstance(value, list | tuple) else [value]:
        problem = files.address_problem(f"--{name}", text)
        if problem is not None and name not in allowed:
          raise errors.ConfigError(problem)
        if problem is not None and allowed[name][0] == FETCHED:
          setattr(parsed, name, allowed[name][1](copies.local(text, flag=f"--{name}")))
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
  """Raises ConfigError where the locale is not UTF-8 and an argument, or this folder's name, is not ASCII.

  Libraries take paths for UTF-8: there they would look for files of other names, or fail.
  """
  encoding = sys.getfilesystemencoding()
  other = next((text for text in [*arguments, os.getcwd()] if not text.isascii()), None)
  if encoding != "utf-8" and other is not None:
    shown = os.fsencode(other).decode("utf-8", "backslashreplace")
    raise errors.ConfigError(
      f"{shown!a}: not ASCII, and this shell's locale is not UTF-8 ({encoding}); put LC_ALL=C.UTF-8 (or "
      "PYTHONUTF8=1) before the command"
    )


class End:
  """How a command ends."""

  code = 0  # exit code of the process
  _is_settled = _is_asked = False

  def settle(self, is_asked: bool) -> None:
    """From now on a signal changes nothing: the first is answered by a line, one after another request kills.

    `is_asked`: whether such a request has come already.
    """
    self._is_asked, self._is_settled = is_asked, True

  def hear(self, number: int, _) -> None:
    """Handles SIGTERM and SIGINT: unwinds a command that is not settled."""
    if not self._is_settled:
      raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt
    if self._is_asked:
      signal.signal(number, signal.SIG_DFL)
      os.kill(os.getpid(), number)
    else:
      self._is_asked = True
      os.write(2, TOO_LATE)


class _Terminated(KeyboardInterrupt):
  """SIGTERM: unwinds as Ctrl-C does, so that files are cleaned up and children end."""


@contextlib.contextmanager
def _terminable(end: End, *, is_last: bool) -> Iterator[None]:
  """Within the block signals go to `end`, and the process asks itself to end if its parent does."""
  if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
    yield
    return
  # Who started it in the background of a shell may have it ignore Ctrl-C.
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
  """The short name of this program's commit, with '+' if files were changed since; '' outside git."""
  if not (_ROOT.parent / ".git").exists():  # installed: git would describe a repository around site-packages
    return ""
  described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
  with contextlib.suppress(OSError):  # no git
    return subprocess.run(described, cwd=_ROOT, capture_output=True, text=True).stdout.strip()
  return ""


def versions(packages: Sequence[str]) -> dict[str, str]:
  """{name: version} of installed packages."""
  return {name: importlib.metadata.version(name) for name in packages}


@contextlib.contextmanager
def one_line_errors(
  *, stopped: str, debug: bool = False, is_last: bool = False, quiet: bool = False, verbose: bool = False
) -> Iterator[End]:
  """Ends the work of a command, which is in the block, with an exit code instead of a traceback.

  Within the block log lines are shown, as many as `quiet` and `verbose` choose.

  Yields what holds the exit code after the block; the block may set it. Ctrl-C and SIGTERM print `stopped`;
  so does the end of a command that started this one by `run_child`. With `debug` a user's error keeps its
  traceback instead of becoming a line on stderr. `is_last`: the process ends with the block, and no signal is
  to change its exit code any more.
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
  """Keeps back what libraries print of a failed save, which the command's own line reports.

  Orbax and asyncio log it. Tensorstore and Python print tracebacks of writes that never begin, or that end
  after orbax's event loop; so nothing is restored where the process ends with the block.
  """

  def is_news(record: logging.LogRecord) -> bool:
    is_of_save = "orbax" in record.pathname or "never retrieved" in record.getMessage()
    return record.levelno < logging.WARNING or not is_of_save  # less is shown with --verbose alone

  def print_news(unraisable: "sys.UnraisableHookArgs") -> None:
    if "Event loop is closed" not in str(unraisable.exc_value):
      print_any(unraisable)

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
  """Returns the message for a full disk, also where printing fills it; None for any other error.

  It discards buffered output, because Python would fail to print it once more at exit.
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
  """The names in a flag's list with commas; '' lists none."""
  return [name for name in listed.split(",") if name]


def refuse_below_one(asked: argparse.Namespace, *flags: str) -> None:
  """Raises ConfigError where one of these flags, whole numbers, is 0 or less."""
  for flag in flags:
    if getattr(asked, flag) < 1:
      raise errors.ConfigError(f"--{flag}={getattr(asked, flag)}: expected at least 1")


def exit_code(function: Callable[[], int | None], *, stopped: str, debug: bool = False) -> int:
  """Calls the work of a command, see `one_line_errors`, and returns the exit code of the process."""
  with one_line_errors(stopped=stopped, debug=debug) as end:
    end.code = function() or 0
  return end.code


def run(function: Callable[[], None]) -> int:
  """As `exit_code`, for commands that write files: every error is one line, those about writing too."""

  def with_one_line_errors() -> None:
    try:
      function()
    except errors.UserError as error:
      raise type(error)(errors.on_one_line(error)) from error
    except Exception as error:
      # Reading errors were turned into DataErrors where the file is known; what is left is about writing.
      is_full = errors.is_full_disk(error)
      if not (is_full or isinstance(error, OSError)):
        raise
      hint = "free some space" if is_full else "check the place and its rights"
      filename = getattr(error, "filename", None)
      file = f"{filename}: " if filename else ""
      raise errors.StorageError(
        f"{file}{errors.reason(error)}; {hint} and run the same command again"
      ) from error

  return exit_code(with_one_line_errors, stopped="stopped; run the same command again to go on")


def run_with_output(
  parse: Callable[[Sequence[str] | None], argparse.Namespace],
  function: Callable[[argparse.Namespace], None],
  argv: Sequence[str] | None,
  *,
  is_file: bool = False,
) -> int:
  """Runs `function` with the flags, of which --output may be an address; returns the command's exit code."""

  def work() -> None:
    asked = parse(argv)
    with outputs.sent(asked, is_file=is_file):
      function(asked)

  return run(work)


def run_child(
  arguments: Sequence[str], *, relay: bool, log: TextIO | None = None, **options
) -> tuple[int, str]:
  """Runs a command of this project in a process of its own; `options` go to `subprocess.Popen`.

  It ends when this process does, however that ends. With `relay` what it writes to stderr is logged as it
  comes, but for its error; all that it writes goes to the file `log`. Returns its exit code, and the error it
  reported: its last line on stderr, or how it ended if it wrote none or was killed.
  """
  last = ""
  if log:
    options["stdout"] = log
  options["env"] = options.get("env", os.environ) | {_PARENT: str(os.getpid())}
  with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, errors="replace", **options) as child:
    assert child.stderr is not None
    try:
      for line in child.stderr:
        last = line.strip() or last
        if log:
          print(line, end="", file=log, flush=True)
        if relay and line.strip() and not line.startswith(_ERROR):  # the caller's own message holds that one
          log_lines.relay(line.rstrip())
    except KeyboardInterrupt:
      child.terminate()  # Ctrl-C reaches it too, SIGTERM does not
      raise
  if child.returncode < 0:
    return child.returncode, f"killed by signal {-child.returncode}"
  return child.returncode, last.removeprefix(_ERROR).strip() or f"exit code {child.returncode}"
