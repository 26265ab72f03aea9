"""pyproject.toml, the files made from it, the wheel's contents, the commands. Nothing is installed."""

import collections
import datetime
import fnmatch
import itertools
import json
import logging
import re
import runpy
import sys

import pytest
from packaging import specifiers

from data import programs, progress
from data.errors import ConfigError
from pretrain import command
from tests import check_install, pins, pythons

ROOT = pins.ROOT


def required():
  """(name as in [tool.pins], extras, range, marker) of all that pyproject.toml asks for."""
  table = pins.project()
  for line in itertools.chain(table["dependencies"], *table["optional-dependencies"].values()):
    if not line.startswith(table["name"]):
      name, extras, asked, marker = pins.REQUIREMENT.fullmatch(line).groups()
      yield name.lower().replace("_", "-"), extras, asked, (marker or "").removeprefix("; ")


def test_the_requirements_files_are_made_from_pyproject():
  files = {path.name: path.read_text() for path in ROOT.glob("requirements*.txt")}
  assert files == pins.contents(), "run `make requirements`"


def test_every_range_holds_the_versions_that_are_installed_and_every_version_has_a_range():
  ranges = collections.defaultdict(set)
  for name, _, asked, _ in required():
    ranges[name] |= {asked}
  for name, asked in ranges.items():
    lines = pins.pinned(f"{name}{next(iter(asked))}")
    versions = [line.partition("==")[2].partition(";")[0] for line in lines]
    assert versions and all(specifiers.SpecifierSet(one).contains(v) for one in asked for v in versions), name
  assert ranges.keys() == pins.exact().keys()


def test_a_line_has_the_versions_of_its_python_and_keeps_its_extras(monkeypatch):
  marked = ["0.10.2; python_version < '3.12'", "0.12; python_version >= '3.12'"]
  monkeypatch.setattr(pins, "exact", lambda: {"jax": marked, "a-b": "1.5"})
  assert pins.pinned("jax[cuda12]>=0.10") == [
    "jax[cuda12]==0.10.2; python_version < '3.12'",
    "jax[cuda12]==0.12; python_version >= '3.12'",
  ]
  assert pins.pinned("jax>=0.10; python_version < '3.12'") == ["jax==0.10.2; python_version < '3.12'"]
  assert pins.pinned("A_b>=1,<2; python_version < '3.14'") == ["A_b==1.5; python_version < '3.14'"]


def test_extras_that_are_named_are_there():
  contents = pins.contents()
  named = {
    line.removeprefix("-r ") for text in contents.values() for line in text.splitlines() if line[:2] == "-r"
  }
  assert named <= contents.keys() and pins.file_name("export") in named
  own = (check_install.ALL, check_install.WHEEL)
  files = [name for name in check_install.SETS if name not in own and check_install.BESIDE not in name]
  sets = {name for wanted in files for name in wanted.split("+")} - {"base"}
  assert sets == pins.project()["optional-dependencies"].keys()


def test_the_base_has_no_tensorflow_and_python_3_14_goes_without_it():
  family = {"tensorflow", "tensorflow-datasets", "seqio", "importlib-resources"}
  assert {name for name, _, _, marker in required() if "3.14" in marker} == family
  assert not [name for name in family if name in pins.contents()[pins.BASE]]
  assert pins.contents()[pins.ALL_SOURCES].endswith("-r requirements-base.txt\n-r requirements-seqio.txt\n")


def test_pyproject_make_and_the_search_for_pythons_name_the_same_versions():
  assert pins.project()["requires-python"] == f">=3.{pythons.MINORS[0]},<3.{pythons.MINORS[-1] + 1}"
  (check,) = re.findall(
    r"version_info\[:2\] not in \((.*)\)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE
  )
  assert [int(minor) for minor in re.findall(r"3, (\d+)", check)] == list(pythons.MINORS)
  assert f"3.{sys.version_info.minor}" in pythons.found()


def test_other_pythons_take_turns_by_the_day_and_nightly_all_are_tried():
  days = [datetime.date(2026, 11, day) for day in (28, 29, 30)]
  turns = [pythons.chosen(["3.12", "3.13"], day, is_all=False) for day in days]
  assert turns[0] != turns[1] and turns[0] == turns[2] and {*map(tuple, turns)} == {("3.12",), ("3.13",)}
  assert pythons.chosen(["3.12", "3.13"], days[0], is_all=True) == ["3.12", "3.13"]
  assert pythons.chosen([], days[0], is_all=False) == []


def test_everything_that_the_wheel_needs_is_in_its_packages():
  assert {module.partition(".")[0] for module in programs.PROGRAMS.values()} | {"configs", "lab"} == {
    *pins.packages()
  }
  files = [path for part in pins.packages() for path in (ROOT / part).rglob("*") if path.is_file()]
  files = [path for path in files if "__pycache__" not in path.parts]
  assert not {path.parent for path in files if not (path.parent / "__init__.py").is_file()}
  others = [path for path in files if path.suffix != ".py"]
  assert others
  assert not [
    path for path in others if not any(fnmatch.fnmatch(path.name, pattern) for pattern in pins.package_data())
  ]


def test_every_command_is_a_module_that_runs_under_a_name_of_our_own():
  scripts = pins.project()["scripts"]
  assert set(scripts.values()) == {"data.programs:run_installed"}
  assert scripts.keys() == {f"{programs.PREFIX}{name}" for name in programs.PROGRAMS}
  for module in programs.PROGRAMS.values():
    path = ROOT / module.replace(".", "/")
    source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert 'if __name__ == "__main__":' in source.read_text()


def test_a_command_runs_its_module_as_python_m_does(tmp_path, monkeypatch, capsys):
  (tmp_path / "a_program.py").write_text(
    "import sys\nprint(__name__, sys.argv, sys.modules['__main__'].__spec__.name)"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setitem(programs.PROGRAMS, "pretrain", "a_program")
  monkeypatch.setattr(programs, "_installed", {})
  monkeypatch.setattr(sys, "argv", ["/bin/text-encoder-pretrain", "--config=x"])
  programs.run_installed()
  assert capsys.readouterr().out == f"__main__ {[str(tmp_path / 'a_program.py'), '--config=x']} a_program\n"


def test_help_errors_and_log_lines_name_commands_as_the_user_started_one(monkeypatch, capsys):
  for script, usage, error, log in (
    ("", "usage: python -m data.inspect", "see `python -m data.inspect --help`", "python -m data.prepare -h"),
    (
      "inspect",
      "usage: text-encoder-inspect",
      "see `text-encoder-inspect --help`",
      "text-encoder-prepare -h",
    ),
  ):
    for argument, expected in (("--help", usage), ("--length", error)):
      monkeypatch.setattr(programs, "_installed", {})
      monkeypatch.setattr(sys, "argv", [f"/bin/{programs.PREFIX}{script}", argument])
      with pytest.raises(SystemExit):
        programs.run_installed() if script else runpy.run_module("data.inspect", run_name="__main__")
      output = capsys.readouterr()
      assert expected in output.out + output.err
    with progress.shown():
      logging.getLogger("data.any").warning("python -m data.prepare -h, python -m data.corpora")
    assert capsys.readouterr().err == f"warning: {log}, python -m data.corpora\n"


def test_recipes_are_found_without_a_checkout_and_files_of_ones_own_come_first(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  recipe = command.load_config("configs/bert_base.py:tiny")
  assert recipe == command.load_config(f"{ROOT}/configs/bert_base.py:tiny")
  with pytest.raises(ConfigError, match="no such file"):
    command.load_config("configs/../pretrain/main.py")
  (tmp_path / "configs").mkdir()
  own = "from ml_collections import ConfigDict\ndef get_config():\n  return ConfigDict({'own': 1})\n"
  (tmp_path / "configs" / "bert_base.py").write_text(own)
  assert command.load_config("configs/bert_base.py").to_dict() == {"own": 1}


def test_the_check_says_what_does_not_resolve_and_fails(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("PIP_FIND_LINKS", "/elsewhere")  # pip's own settings hide what fails elsewhere
  stand_in, asked = tmp_path / "python", tmp_path / "asked"
  (tmp_path / "a.whl").touch()
  monkeypatch.setattr(check_install, "_pip", lambda: str(stand_in))
  monkeypatch.setattr(check_install, "_build", lambda python, folder: tmp_path / "a.whl")
  monkeypatch.setattr(pythons, "found", lambda: {"3.12": "python3.12"})
  installs = [{"metadata": {"name": name, "version": "2.5"}} for name in ("NumPy", "b")]
  (tmp_path / "report").write_text(json.dumps({"install": installs}))
  for code, said in ((0, "2 packages"), (1, "FAILS: ERROR: torch 2.13.0 depends on triton==3.7.1")):
    stand_in.write_text(
      "#!/bin/sh\n"
      f'for word; do case $word in --report=*) cp {tmp_path}/report "${{word#--report=}}"\n'
      "esac; done\n"
      f'[ -z "$PIP_FIND_LINKS" ] || exit 9\n'
      f'echo "$@" >> {asked}\n'
      f"echo 'WARNING: lazy' >&2; echo 'ERROR: torch 2.13.0 depends on triton==3.7.1' >&2; exit {code}\n"
    )
    stand_in.chmod(0o755)
    assert check_install.main(["export+gpu", "all", "beside:numpy"]) == code
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[2] for line in lines] == ["export+gpu", "all", "beside:numpy"]
    assert all(said in line and "WARNING" not in line for line in lines)
  beside = [line for line in asked.read_text().splitlines() if line.endswith("numpy==2.5")]
  assert [line.split()[-2:] for line in beside] == [[str(tmp_path / "a.whl"), "numpy==2.5"]]
