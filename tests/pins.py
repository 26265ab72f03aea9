"""The requirements files, made from pyproject.toml: `python -m tests.pins` writes them.

pyproject.toml has ranges, for people who install the project beside others, and [tool.pins], the versions of
CI. The files have these versions. They are for environments that hold the packages but not the
project: those of `make`, images, other machines.
"""

import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALL_SOURCES = "requirements.txt"  # the base and what `tfds:` and `seqio:` sources need
BASE = "requirements-base.txt"
_HEADER = "# Made from pyproject.toml by `make requirements`: versions and their reasons are there.\n"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[\w,]+\])?(?P<range>[^;]*)(?P<marker>;.*)?")


def _table() -> Mapping[str, Any]:
  return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def project() -> Mapping[str, Any]:
  """Returns pyproject.toml's table [project]."""
  return _table()["project"]


def exact() -> Mapping[str, Any]:
  """Returns [tool.pins]: {package: its version, or versions with markers}."""
  return _table()["tool"]["pins"]


def packages() -> list[str]:
  """Returns the folders whose packages are in the wheel."""
  return [name.removesuffix("*") for name in _table()["tool"]["setuptools"]["packages"]["find"]["include"]]


def package_data() -> list[str]:
  """Returns patterns of the files in the wheel that are not Python."""
  return _table()["tool"]["setuptools"]["package-data"]["*"]


def file_name(extra: str) -> str:
  """Returns the file of an extra; '' is the project without extras."""
  return f"requirements-{extra}.txt" if extra else BASE


def pinned(requirement: str) -> list[str]:
  """Returns the lines of a requirements file for a range: its versions of [tool.pins], with their markers."""
  match = REQUIREMENT.fullmatch(requirement)
  assert match, requirement
  versions = exact()[match["name"].lower().replace("_", "-")]
  found, named = [], match["name"] + (match["extras"] or "")
  for version in [versions] if isinstance(versions, str) else versions:
    number, _, marker = version.partition("; ")
    if marker in ("", asked := (match["marker"] or "")[2:]) or not asked:
      found.append(f"{named}=={number}" + (f"; {marker or asked}" if marker or asked else ""))
  return found


def contents() -> dict[str, str]:
  """Returns {file name: text} of all requirements files."""
  table = project()
  own = re.compile(rf"{table['name']}\[([\w,]+)\]")
  texts = {ALL_SOURCES: _HEADER + f"-r {BASE}\n-r {file_name('seqio')}\n"}
  for extra, lines in {"": table["dependencies"], **table["optional-dependencies"]}.items():
    included, pins = [BASE] if extra else [], []
    for line in lines:
      if match := own.fullmatch(line):
        included += map(file_name, match[1].split(","))
      else:
        pins += pinned(line)
    named = [*(f"-r {name}" for name in included), *dict.fromkeys(pins)]
    texts[file_name(extra)] = _HEADER + "".join(f"{line}\n" for line in named)
  return texts


if __name__ == "__main__":
  for name, text in contents().items():
    (ROOT / name).write_text(text, encoding="utf-8")
