"""Commands: exit codes, errors of one line, child processes, which log lines are shown."""

import errno
import logging
import os
import signal
import sys
import time

import pytest

from data import command, progress
from data.errors import ConfigError, DataError

OURS, OTHERS = logging.getLogger("data.any"), logging.getLogger("a_library.any")


def fail(error: BaseException):
  raise error


def test_a_command_ends_with_its_own_code_or_that_of_its_error(capsys):
  assert (command.run(lambda: None), command.run(lambda: 75)) == (0, 75)
  assert capsys.readouterr().err == ""
  for error, code, line in (
    (DataError("first\nsecond\n  --third\n  --fourth"), 3, "error: first second\n  --third\n  --fourth\n"),
    (OSError(errno.ENOSPC, "No space left", "a.txt"), 5, "error: a.txt: cannot be written (No space left); "),
    (OSError("x"), 5, "error: a file, or what this command prints, cannot be written (x); check "),
    (KeyboardInterrupt(), 130, "stopped; run the same command again\n"),
  ):
    assert command.run(lambda error=error: fail(error)) == code
    assert capsys.readouterr().err.startswith(line)
  with pytest.raises(DataError):
    command.run(lambda: fail(DataError("x")), debug=True)
  with pytest.raises(KeyError):
    command.run(lambda: fail(KeyError("a fault of ours")))


def test_a_child_gives_its_code_and_its_error_and_shows_the_rest_at_its_level(capfd):
  script = "import sys; print('  working\\nwarning: careful', file=sys.stderr); "
  script += "sys.exit('error: too large:\\n  --size=1')"
  for options, shown in (
    ({"quiet": False}, "  working\nwarning: careful\n"),
    ({"quiet": True}, "warning: careful\n"),
  ):
    with progress.shown(**options):
      assert command.run_child([sys.executable, "-c", script], relay=True) == (1, "too large: --size=1")
    assert capfd.readouterr().err == shown
  with progress.shown():
    assert command.run_child([sys.executable, "-c", script], relay=False) == (1, "too large: --size=1")
  assert capfd.readouterr().err == ""


def test_a_childs_log_holds_all_that_it_writes_and_a_kill_is_told(tmp_path):
  script = "import os, sys; print('out', flush=True); print('step 1', file=sys.stderr, flush=True); "
  for ending, ended in (
    ("sys.exit('error: no')", (1, "no")),
    ("sys.stderr.close(); os._exit(4)", (4, "step 1")),
    ("os.kill(os.getpid(), 9)", (-9, "killed by signal 9")),
  ):
    with open(tmp_path / "log", "w+") as log:
      assert command.run_child([sys.executable, "-c", script + ending], relay=False, log=log) == ended
      log.seek(0)
      assert {"out", "step 1"} <= {*log.read().splitlines()}


def test_sigterm_unwinds_and_asks_to_be_started_again(capsys):
  cleaned = []

  def work() -> None:
    try:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(60)
    finally:
      cleaned.append(True)

  before = signal.getsignal(signal.SIGTERM)
  assert command.run(work, stopped="stopped in time") == 75
  assert cleaned and capsys.readouterr().err == "stopped in time\n"
  assert signal.getsignal(signal.SIGTERM) is before


def test_a_mistyped_flag_is_told_before_the_flag_that_is_then_missing():
  parser = command.Parser(prog="x")
  parser.add_argument("--source", required=True)
  parser.add_argument("--size", type=int)
  inner = parser.add_subparsers(dest="command", parser_class=command.Parser).add_parser("go")
  inner.add_argument("--last", required=True)
  for words, message in (
    (["--sorce=a", "go"], "--sorce: no such flag; did you mean '--source'?"),
    (["--source=a", "go", "--lst", "3"], "--lst: no such flag; did you mean '--last'?"),
    (["--source=a", "go"], "the following arguments are required: --last; see `x go --help`"),
    (["--source=a", "go", "--last=3", "--zzz"], "unrecognized arguments: --zzz; see `x --help`"),
    (["--source=a", "--size=b", "go"], "argument --size: invalid int value: 'b'; see `x --help`"),
  ):
    with pytest.raises(ConfigError) as raised:
      parser.parse_args(words)
    assert str(raised.value) == message
  assert parser.parse_args(["--source=a", "go", "--last=--sorce"]).last == "--sorce"


def _log_all() -> None:
  for logger, name in ((OURS, "ours"), (OTHERS, "theirs")):
    logger.debug(f"{name}, debug")
    logger.info(f"{name}, info")
    logger.warning(f"{name}, %s", "warning")


def _run(*arguments: str) -> int:
  def work() -> None:
    parser = command.Parser(prog="x")
    parser.add_subparsers(dest="command", parser_class=command.Parser).add_parser("go")
    assert vars(parser.parse_args(arguments)) == {"command": "go"}
    _log_all()

  return command.run(work, stopped="")


def test_two_flags_choose_which_lines_are_shown_and_nothing_is_left_of_it(capsys):
  def state() -> list:
    loggers = [logging.root, *(logging.getLogger(name) for name in progress.OURS)]
    return [({*logger.handlers}, logger.level) for logger in loggers]

  before = state()
  for flags, lines in (
    (["go"], ["ours, info", "warning: ours, warning", "warning: theirs, warning"]),
    (["--quiet", "go"], ["warning: ours, warning", "warning: theirs, warning"]),
    (["go", "--verbose"], ["ours, debug", "ours, info", "warning: ours, warning"]),
  ):
    assert _run(*flags) == 0 and state() == before
    assert capsys.readouterr().err.splitlines()[:3] == lines
  with progress.shown(quiet=True):  # a command within a command shows each line once
    assert _run("go") == 0
  assert len(capsys.readouterr().err.splitlines()) == 2
  assert _run("--quiet", "go", "--verbose") == 2
