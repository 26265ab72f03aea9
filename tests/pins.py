"""The requirements files, made from pyproject.toml: `python -m tests.pins` writes them.

The versions and their reasons are in pyproject.toml alone. The files are for environments that hold the
packages but not the project: those of `make`, images, other machines.
"""

import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASE = "requirements.txt"
_HEADER = "# Made from pyproject.toml by `make requirements`: versions and their reasons are there.\n"


def _table() -> Mapping[str, Any]:
  return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def project() -> Mapping[str, Any]:
  """Returns pyproject.toml's table [project]."""
  return _table()["project"]


def packages() -> list[str]:
  """Returns the folders whose packages are in the wheel."""
  return [name.removesuffix("*") for name in _table()["tool"]["setuptools"]["packages"]["find"]["include"]]


def package_data() -> list[str]:
  """Returns patterns of the files in the wheel that are not Python."""
  return _table()["tool"]["setuptools"]["package-data"]["*"]


def file_name(extra: str) -> str:
  """Returns the file of an extra; '' is the project without extras."""
  return f"requirements-{extra}.txt" if extra else BASE


def contents() -> dict[str, str]:
  """Returns {file name: text} of all requirements files."""
  table = project()
  own = re.compile(rf"{table['name']}\[([\w,]+)\]")
  texts = {BASE: _HEADER + "".join(f"{line}\n" for line in table["dependencies"])}
  for extra, lines in table["optional-dependencies"].items():
    included, pins = [BASE], []
    for line in lines:
      if match := own.fullmatch(line):
        included += map(file_name, match[1].split(","))
      else:
        pins.append(line)
    texts[file_name(extra)] = _HEADER + "".join(
      [*(f"-r {name}\n" for name in included), *map("{}\n".format, pins)]
    )
  return texts


if __name__ == "__main__":
  for name, text in contents().items():
    (ROOT / name).write_text(text, encoding="utf-8")
