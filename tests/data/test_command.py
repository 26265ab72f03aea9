"""Commands: exit codes, errors of one line, child processes."""

import errno
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from data import command, log_lines
from data.errors import DataError


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


def test_the_debug_switch_and_errors_of_ours_keep_their_traceback():
  with pytest.raises(DataError):
    command.exit_code(lambda: fail(DataError("x")), stopped="", debug=True)
  with pytest.raises(OSError):
    command.exit_code(lambda: fail(OSError("x")), stopped="")


def test_the_help_says_what_is_left_out_means():
  parser = command.Parser(prog="x")
  parser.add_argument("--length", type=int, default=512, help="most tokens in a record")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--name", default="", help="a name; default: the file's")
  parser.add_argument("--all", action="store_true", help="everything")
  text = " ".join(parser.format_help().split())
  assert "--length LENGTH most tokens in a record (default: 512)" in text
  assert "--seed SEED (default: 0)" in text
  assert text.count("default:") == 3 and text.endswith("--all everything")


def test_a_command_that_writes_files_keeps_of_a_message_only_the_lines_with_ways_out(capsys):
  assert command.run(lambda: fail(DataError("first\nsecond\n  --third\n  --fourth"))) == 3
  assert capsys.readouterr().err == "error: first second\n  --third\n  --fourth\n"
  assert command.run(lambda: fail(OSError(errno.ENOSPC, "No space left", "a.txt"))) == 5
  assert capsys.readouterr().err == (
    "error: a.txt: No space left; free some space and run the same command again\n"
  )
  assert command.run(lambda: fail(KeyboardInterrupt())) == 130


def test_an_installed_project_has_no_commit_though_a_repository_is_around_it(tmp_path, monkeypatch):
  git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c"]
  subprocess.run([*git, "init", "--quiet"], check=True)
  subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=a"], check=True)
  for folder, is_known in ((tmp_path / "data", True), (tmp_path / ".venv" / "site-packages" / "data", False)):
    folder.mkdir(parents=True)
    monkeypatch.setattr(command, "_ROOT", folder)
    assert bool(command.commit()) == is_known


def test_a_child_gives_its_code_and_its_error_and_shows_the_rest(capfd):
  script = "import sys; print('  working', file=sys.stderr); sys.exit('error: too large:\\n  --size=1')"
  for relay, shown in ((True, "  working\n"), (False, "")):
    with log_lines.shown():
      assert command.run_child([sys.executable, "-c", script], relay=relay) == (1, "too large: --size=1")
    assert capfd.readouterr().err == shown
  assert command.run_child([sys.executable, "-c", "import sys; sys.exit(4)"], relay=True) == (
    4,
    "exit code 4",
  )


def test_a_childs_log_holds_all_that_it_writes_and_a_kill_is_told(tmp_path):
  script = "import os, sys; print('out', flush=True); print('step 1', file=sys.stderr, flush=True); "
  for ending, ended in (
    ("sys.exit('error: no')", (1, "no")),
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


def test_a_signal_to_a_command_that_is_settled_is_a_line_and_another_kills(capfd, monkeypatch):
  numbers, killed = (signal.SIGTERM, signal.SIGINT), []
  ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
  before = [signal.getsignal(number) for number in numbers]
  monkeypatch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
  with command.one_line_errors(stopped="stopped in time") as end:
    end.settle(is_asked=False)
    signal.raise_signal(signal.SIGTERM)
    assert not killed
    signal.raise_signal(signal.SIGINT)
    assert killed == [(os.getpid(), signal.SIGINT)] and signal.getsignal(signal.SIGINT) == signal.SIG_DFL
  assert end.code == 0 and capfd.readouterr().err.encode() == command.TOO_LATE
  assert [signal.getsignal(number) for number in numbers] == before
  with command.one_line_errors(stopped="stopped in time") as end:
    end.settle(is_asked=True)
    signal.raise_signal(signal.SIGTERM)
  assert len(killed) == 2 and capfd.readouterr().err == ""
  signal.signal(signal.SIGINT, ours)


def test_after_the_last_command_of_a_process_nothing_is_heard():
  numbers = (signal.SIGTERM, signal.SIGINT)
  before = [signal.getsignal(number) for number in numbers]
  try:
    with command.one_line_errors(stopped="", is_last=True):
      pass
    assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
  finally:
    for number, handler in zip(numbers, before, strict=True):
      signal.signal(number, handler)


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
    child = int(parent.stderr.readline())
    parent.send_signal(number)
    assert parent.wait(10) == code
  deadline = time.monotonic() + 10
  while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
    assert time.monotonic() < deadline, "the child lives on"
    time.sleep(0.1)


def test_output_that_cannot_be_written_is_one_line_and_code_5():
  code = (
    "import sys; from data import command\n"
    "def work(): print('x', flush=True)\n"
    "sys.exit(command.exit_code(work, stopped=''))"
  )
  with open("/dev/full", "w") as full:
    done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
  assert done.returncode == 5
  (line,) = done.stderr.splitlines()
  assert line.startswith("error: a file, or what this command prints, cannot be written (No space left on")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {}])
@pytest.mark.parametrize("flag", ["--output", "--workdir"])
def test_a_path_that_is_not_ascii_in_another_locale_than_utf_8_is_one_line(tmp_path, locale, flag):
  module = "data.prepare" if flag == "--output" else "pretrain.main"
  source = ["--source=/nowhere.txt"] if flag == "--output" else ["--config=/nowhere.py"]
  arguments = [sys.executable, "-m", module, f"{flag}={tmp_path}/\u00fc", *source]
  environment = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LC_CTYPE")}
  environment |= {"LC_ALL": "C.UTF-8"} | locale
  ended = subprocess.run(
    list(map(os.fsencode, arguments)), capture_output=True, env=environment, cwd=command._ROOT.parent
  )
  said = ended.stderr.decode("ascii", "backslashreplace")
  assert "Traceback" not in said
  if locale:
    assert ended.returncode == 2
    assert f"{flag}=" in said and "\\xfc' : not ASCII".replace(" ", "") in said.replace(" ", "")
    assert said.endswith(" run this first:\n  export LC_ALL=C.UTF-8\n")
  else:
    assert "locale" not in said  # what is wrong is the source, or the config


def test_records_of_absl_name_the_file_that_logged():
  program = """if True:
    import logging
    from data import command
    with command.one_line_errors(stopped="x"):
      print(type(logging.getLogger("absl")))"""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
  assert "ABSLLogger" in done.stdout, done.stderr
