"""The tables of faults are up to date, and the runner reports what became of a fault.

No fault of the tables is run here: `make mutants` does.
"""

import ast
import functools
import pathlib
import subprocess

import pytest

from tests.mutants import ROOT, Mutant, read_mutants
from tests.mutants import __main__ as mutants

# A project of its own, small enough to run pytest on several times.
_CODE = "def double(x):\n  return 2 * x\n\n\ndef half(x):\n  return x / 2\n\n\ndef first(x):\n  return x[0]\n"
_TESTS = """
import pytest
import code_under_test

def test_double(): assert code_under_test.double(3) == 6
def test_half(): assert code_under_test.half(0) == 0
def test_first(): assert code_under_test.first([5, 6]) == 5
def test_skipped(): pytest.skip("not here")
"""
_CAUGHT = Mutant("a sum", "code_under_test.py", "2 * x", "2 + x", "test_code.py::test_double")
_SURVIVOR = Mutant("a third", "code_under_test.py", "x / 2", "x / 3", "test_code.py::test_half")
_BROKEN = [
  Mutant("no name", "code_under_test.py", "2 * x", "two * x", "test_code.py::test_double"),
  Mutant("no code", "code_under_test.py", "2 * x", "2 *", "test_code.py::test_double"),
  Mutant("no place", "code_under_test.py", "3 * x", "2 * x", "test_code.py::test_double"),
  Mutant("two places", "code_under_test.py", "return x", "return -x", "test_code.py::test_double"),
]


@pytest.fixture
def project(tmp_path, monkeypatch) -> pathlib.Path:
  """A checkout with one module and its tests; the module is not added, the cache is ignored."""
  monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of the time of a start
  monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
  for name, text in (("code_under_test.py", _CODE), ("test_code.py", _TESTS), (".gitignore", "big\n")):
    (tmp_path / name).write_text(text, encoding="utf-8")
  (tmp_path / "big").mkdir()
  (tmp_path / "big" / "file").write_text("never copied", encoding="utf-8")
  subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
  subprocess.run(["git", "add", "test_code.py"], cwd=tmp_path, check=True)
  return tmp_path


@functools.cache
def _tests_of(path: str) -> set[str]:
  tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
  return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_changes_one_place_of_one_line_and_its_test_exists():
  rows = read_mutants()
  assert len({row.name for row in rows}) == len(rows) >= 500
  for row in rows:
    text = (ROOT / row.file).read_text(encoding="utf-8")
    assert text.count(row.original) == 1, row
    assert "\n" not in row.original + row.fault and row.fault != row.original, row
    if row.file.endswith(".py"):
      ast.parse(text.replace(row.original, row.fault))
    file, _, test = row.test.partition("::")
    assert test.partition("[")[0] in _tests_of(file), row


def test_caught_survived_and_broken_are_told_apart_and_the_checkout_is_left_alone(project, capsys):
  listed = [_CAUGHT, _SURVIVOR, *_BROKEN]
  assert mutants.main(["--workers=2"], root=project, mutants=listed) == 1
  lines = capsys.readouterr().out.splitlines()
  verdicts = {line.split(" s  ")[1].split("  ")[0]: line.split()[0] for line in lines if " s  " in line}
  expected = {"a sum": "caught", "a third": "SURVIVED", **{mutant.name: "broken" for mutant in _BROKEN}}
  assert verdicts == expected
  assert any("NameError" in line for line in lines)
  assert sum("times, expected once" in line for line in lines) == 2
  assert lines[-1].startswith("1 of 6 faults caught in ")
  assert (project / "code_under_test.py").read_text(encoding="utf-8") == _CODE


def test_only_takes_a_part_of_the_list_and_all_caught_is_exit_code_0(project, capsys):
  assert mutants.main(["--only=a sum"], root=project, mutants=[_CAUGHT, _SURVIVOR]) == 0
  assert capsys.readouterr().out.splitlines()[-1].startswith("1 of 1 faults caught in ")


@pytest.mark.parametrize(
  "test, reason, workers", [("test_skipped", "not here", 1), ("test_that_is_not_there", "not found", 2)]
)
def test_named_tests_have_to_pass_without_a_fault_and_the_reason_is_told(
  project, capsys, test, reason, workers
):
  listed = [_CAUGHT._replace(test=f"test_code.py::{test}"), _SURVIVOR]
  assert mutants.main([f"--workers={workers}"], root=project, mutants=listed) == 1
  captured = capsys.readouterr()
  assert "have to pass on a clean copy first" in captured.err
  assert "faults caught" not in captured.out
  assert reason in captured.out


def test_what_git_ignores_or_has_lost_is_not_copied(project):
  (project / "test_code.py").unlink()
  assert mutants.project_files(project) == [".gitignore", "code_under_test.py"]


@pytest.mark.parametrize(
  "arguments, inside_git, code, message",
  [
    (["--only=no such fault"], True, 2, "no fault has this in its name, file or test"),
    ([], False, 3, "run this in a git checkout"),
  ],
)
def test_wrong_use_is_one_line(project, tmp_path_factory, capsys, arguments, inside_git, code, message):
  root = project if inside_git else tmp_path_factory.mktemp("no_checkout")
  assert mutants.main(arguments, root=root, mutants=[_CAUGHT]) == code
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1
