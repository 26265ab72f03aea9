"""pyproject.toml, the files made from it, the wheel's contents, the commands. Nothing is installed."""

import collections
import datetime
import fnmatch
import itertools
import re
import sys

import pytest

from data.errors import ConfigError
from pretrain import command
from tests import check_install, pins, pythons

ROOT = pins.ROOT


def pinned():
  """(package without its extras, version, marker) of everything in pyproject.toml but the project itself."""
  table = pins.project()
  for line in itertools.chain(table["dependencies"], *table["optional-dependencies"].values()):
    if not line.startswith(table["name"]):
      requirement, _, marker = line.partition(";")
      name, _, version = requirement.partition("==")
      yield name.partition("[")[0].lower().replace("_", "-"), version.strip(), marker.strip()


def test_the_requirements_files_are_made_from_pyproject():
  files = {path.name: path.read_text() for path in ROOT.glob("requirements*.txt")}
  assert files == pins.contents(), "run `make requirements`"


def test_every_package_has_one_version_for_each_python():
  versions = collections.defaultdict(set)
  for name, version, marker in pinned():
    assert re.fullmatch(r"\d[\w.]*", version), f"{name} is not pinned"
    versions[name, marker].add(version)
  assert not {pin: found for pin, found in versions.items() if len(found) > 1}
  unmarked = {name for name, marker in versions if not marker}
  assert not [pin for pin in versions if pin[1] and pin[0] in unmarked]


def test_extras_that_are_named_are_there():
  contents = pins.contents()
  named = {
    line.removeprefix("-r ") for text in contents.values() for line in text.splitlines() if line[:2] == "-r"
  }
  assert named <= contents.keys() and pins.file_name("export") in named
  sets = {name for wanted in check_install.SETS for name in wanted.split("+")} - {"base", check_install.ALL}
  assert sets == pins.project()["optional-dependencies"].keys()


def test_only_python_3_14_goes_without_tensorflow():
  markers = {name: marker for name, _, marker in pinned()}
  family = ("tensorflow", "tensorflow-datasets", "seqio", "importlib-resources")
  assert {markers[name] for name in family} == {"python_version < '3.14'"}
  assert sum("3.14" in marker for _, _, marker in pinned()) == len(family)


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
  assert {module.partition(".")[0] for module in command.PROGRAMS.values()} | {"configs", "lab"} == {
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
  assert set(scripts.values()) == {"pretrain.command:run_installed"}
  assert scripts.keys() == {f"{command.PREFIX}{name}" for name in command.PROGRAMS}
  for module in command.PROGRAMS.values():
    path = ROOT / module.replace(".", "/")
    source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert 'if __name__ == "__main__":' in source.read_text()


def test_a_command_runs_its_module_as_python_m_does(tmp_path, monkeypatch, capsys):
  (tmp_path / "a_program.py").write_text(
    "import sys\nprint(__name__, sys.argv, sys.modules['__main__'].__spec__.name)"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setitem(command.PROGRAMS, "pretrain", "a_program")
  monkeypatch.setattr(sys, "argv", ["/bin/text-encoder-pretrain", "--config=x"])
  command.run_installed()
  assert capsys.readouterr().out == f"__main__ {[str(tmp_path / 'a_program.py'), '--config=x']} a_program\n"


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
  stand_in = tmp_path / "python"
  (tmp_path / "a.whl").touch()
  monkeypatch.setattr(check_install, "_pip", lambda: str(stand_in))
  monkeypatch.setattr(check_install, "_build", lambda python, folder: tmp_path / "a.whl")
  monkeypatch.setattr(pythons, "found", lambda: {"3.12": "python3.12"})
  for code, said in ((0, "2 packages"), (1, "FAILS: ERROR: torch 2.13.0 depends on triton==3.7.1")):
    stand_in.write_text(
      "#!/bin/sh\n"
      'for word; do case $word in --report=*) echo \'{"install": [1, 2]}\' > "${word#--report=}"\n'
      "esac; done\n"
      f'[ -z "$PIP_FIND_LINKS" ] || exit 9\n'
      f"echo 'WARNING: lazy' >&2; echo 'ERROR: torch 2.13.0 depends on triton==3.7.1' >&2; exit {code}\n"
    )
    stand_in.chmod(0o755)
    assert check_install.main(["export+gpu", "all"]) == code
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[2] for line in lines] == ["export+gpu", "all"]
    assert all(said in line and "WARNING" not in line for line in lines)
