"""Log lines: which are shown, how they look, and that nothing of a command's handler is left after it."""

import io
import logging
import runpy
import sys

import pytest

from data import command, log_lines, progress
from pretrain.command import kept_memory
from pretrain.command.programs import PROGRAMS

OURS, OTHERS = logging.getLogger("data.any"), logging.getLogger("a_library.any")


def _log_all() -> None:
  for logger, name in ((OURS, "ours"), (OTHERS, "theirs")):
    logger.debug(f"{name}, debug")
    logger.info(f"{name}, info")
    logger.warning(f"{name}, %s", "warning")


def _parser() -> command.Parser:
  made = command.Parser(prog="x")
  made.add_subparsers(dest="command", parser_class=command.Parser).add_parser("go")
  return made


def _run(*arguments: str) -> int:
  def work() -> None:
    assert vars(_parser().parse_args(arguments)) == {"command": "go"}
    _log_all()

  return command.exit_code(work, stopped="")


WARNINGS = ["warning: ours, warning", "warning: theirs, warning"]
MORE = ["ours, debug", "ours, info", WARNINGS[0], "theirs, info", WARNINGS[1]]


@pytest.mark.parametrize(
  "flags, lines",
  [
    (("go",), ["ours, info", *WARNINGS]),
    (("--quiet", "go"), WARNINGS),
    (("go", "--quiet"), WARNINGS),
    (("--verbose", "go"), MORE),
    (("go", "--verbose"), MORE),
  ],
)
def test_two_flags_choose_which_lines_are_shown(flags, lines, capsys):
  assert _run(*flags) == 0
  captured = capsys.readouterr()
  assert captured.err.splitlines() == lines and captured.out == ""


@pytest.mark.parametrize("flags", [("--quiet", "--verbose", "go"), ("--quiet", "go", "--verbose")])
def test_both_flags_together_are_an_error(flags, capsys):
  assert _run(*flags) == 2
  assert capsys.readouterr().err == f"error: {log_lines.TOGETHER}\n"


def test_a_command_leaves_handlers_and_levels_as_they_were(capsys):
  def state() -> list:
    loggers = [logging.root, *(logging.getLogger(name) for name in log_lines.OURS)]
    return [({*logger.handlers}, logger.level) for logger in loggers]

  library = logging.StreamHandler(io.StringIO())  # as of logging.basicConfig, which absl calls
  logging.root.addHandler(library)
  try:
    before = state()
    assert _run("go", "--verbose") == 0
    assert state() == before and library.stream.getvalue() == ""
  finally:
    logging.root.removeHandler(library)
  capsys.readouterr()
  _log_all()
  assert "info" not in capsys.readouterr().err


def test_a_command_within_a_command_shows_each_line_once_at_the_levels_of_the_outer(capsys):
  with log_lines.shown(quiet=True):
    assert _run("go") == 0
    _log_all()
  assert capsys.readouterr().err.splitlines() == 2 * WARNINGS


def test_a_childs_lines_have_their_levels(capsys):
  script = "import sys; print('working\\nwarning: careful\\nerror: no', file=sys.stderr); sys.exit(3)"
  for quiet, lines in ((False, ["working", "warning: careful"]), (True, ["warning: careful"])):
    with log_lines.shown(quiet=quiet):
      assert command.run_child([sys.executable, "-c", script], relay=True) == (3, "no")
    assert capsys.readouterr().err.splitlines() == lines


class _Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True


def test_a_line_is_written_above_a_progress_bar(monkeypatch):
  terminal = _Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  with log_lines.shown():
    assert progress.is_watched()
    with progress.bar("step", is_shown=True, total=2) as bar:
      bar.update()
      before = len(terminal.getvalue())
      OURS.info("a line")
      cleared, line, redrawn = terminal.getvalue()[before:].partition("a line\n")
  assert line and cleared.strip() == "" and cleared.endswith("\r") and "1/2" in redrawn
  with log_lines.shown(quiet=True):
    assert not progress.is_watched()


@pytest.mark.parametrize("module", PROGRAMS.values())
def test_the_help_of_every_command_lists_both_flags(module, capsys, monkeypatch):
  monkeypatch.setattr(sys, "argv", [module, "--help"])
  monkeypatch.setattr(kept_memory, "keep_temporaries", lambda: None)  # it is for the rest of the process
  with pytest.raises(SystemExit):
    runpy.run_module(module, run_name="__main__")
  text = capsys.readouterr().out
  assert "--quiet" in text and "--verbose" in text
