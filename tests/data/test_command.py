"""Commands: exit codes, errors of one line, child processes, which log lines are shown."""

import errno
import logging
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from data import command, log_lines
from data.errors import DataError

OURS, OTHERS = logging.getLogger("data.any"), logging.getLogger("a_library.any")


def fail(error: BaseException):
  raise error


def test_a_command_ends_with_its_own_code_or_that_of_its_error(capsys):
  assert command.exit_code(lambda: None, stopped="") == 0
  assert command.exit_code(lambda: 75, stopped="") == 75
  assert capsys.readouterr().err == ""
  assert command.exit_code(lambda: fail(DataError("first\nsecond")), stopped="") == 3
  assert capsys.readouterr().err == "error: first\nsecond\n"
  assert command.exit_code(lambda: fail(KeyboardInterrupt()), stopped="stopped in time") == 130
  assert capsys.readouterr().err == "stopped in time\n"
  with pytest.raises(DataError):
    command.exit_code(lambda: fail(DataError("x")), stopped="", debug=True)
  with pytest.raises(OSError):
    command.exit_code(lambda: fail(OSError("x")), stopped="")


def test_a_command_that_writes_files_keeps_of_a_message_only_the_lines_with_ways_out(capsys):
  assert command.run(lambda: fail(DataError("first\nsecond\n  --third\n  --fourth"))) == 3
  assert capsys.readouterr().err == "error: first second\n  --third\n  --fourth\n"
  assert command.run(lambda: fail(OSError(errno.ENOSPC, "No space left", "a.txt"))) == 5
  assert capsys.readouterr().err.startswith("error: a.txt: ")
  assert command.run(lambda: fail(KeyboardInterrupt())) == 130


def test_a_child_gives_its_code_and_its_error_and_shows_the_rest_at_its_level(capfd):
  script = "import sys; print('  working\\nwarning: careful', file=sys.stderr); "
  script += "sys.exit('error: too large:\\n  --size=1')"
  for options, shown in (
    ({"quiet": False}, "  working\nwarning: careful\n"),
    ({"quiet": True}, "warning: careful\n"),
  ):
    with log_lines.shown(**options):
      assert command.run_child([sys.executable, "-c", script], relay=True) == (1, "too large: --size=1")
    assert capfd.readouterr().err == shown
  with log_lines.shown():
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
  assert command.exit_code(work, stopped="stopped in time") == 75
  assert cleaned and capsys.readouterr().err == "stopped in time\n"
  assert signal.getsignal(signal.SIGTERM) is before


_CHILD = """
import os, sys, time
from data import command
def work():
  print(os.getpid(), file=sys.stderr, flush=True)
  time.sleep(60)
sys.exit(command.exit_code(work, stopped="the child was stopped"))
"""
_PARENT = f"""
import sys
from data import command
def work():
  command.run_child([sys.executable, "-c", {_CHILD!r}], relay=True)
sys.exit(command.exit_code(work, stopped="the parent was stopped"))
"""


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGKILL, -9)])
def test_a_child_ends_with_the_command_that_started_it(number, code):
  with subprocess.Popen([sys.executable, "-c", _PARENT], stderr=subprocess.PIPE, text=True) as parent:
    child_id = int(parent.stderr.readline())
    parent.send_signal(number)
    assert parent.wait(10) == code
  deadline = time.monotonic() + 10
  while psutil.pid_exists(child_id) and psutil.Process(child_id).status() != psutil.STATUS_ZOMBIE:
    assert time.monotonic() < deadline, "the child lives on"
    time.sleep(0.1)


def test_a_path_that_is_not_ascii_in_another_locale_than_utf_8_is_one_line(tmp_path):
  environment = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}
  environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
  flags = [f"--output={tmp_path}/\u00fc", "--source=/nowhere.txt"]
  ended = subprocess.run(
    [os.fsencode(part) for part in (sys.executable, "-m", "data.prepare", *flags)],
    capture_output=True,
    env=environment,
    cwd=command._ROOT.parent,
  )
  assert ended.returncode == 2
  assert ended.stderr.decode("ascii", "backslashreplace").endswith("\n  export LC_ALL=C.UTF-8\n")


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

  return command.exit_code(work, stopped="")


def test_two_flags_choose_which_lines_are_shown_and_nothing_is_left_of_it(capsys):
  def state() -> list:
    loggers = [logging.root, *(logging.getLogger(name) for name in log_lines.OURS)]
    return [({*logger.handlers}, logger.level) for logger in loggers]

  before = state()
  for flags, lines in (
    (["go"], ["ours, info", "warning: ours, warning", "warning: theirs, warning"]),
    (["--quiet", "go"], ["warning: ours, warning", "warning: theirs, warning"]),
    (["go", "--verbose"], ["ours, debug", "ours, info", "warning: ours, warning"]),
  ):
    assert _run(*flags) == 0 and state() == before
    assert capsys.readouterr().err.splitlines()[:3] == lines
  with log_lines.shown(quiet=True):  # a command within a command shows each line once
    assert _run("go") == 0
  assert len(capsys.readouterr().err.splitlines()) == 2
  assert _run("--quiet", "go", "--verbose") == 2
