"""Reads the one-line faults that somebody could make, each with the test that has to notice.

`<room>.toml` has the faults of one folder of the product. A table is named by a file and by the file of tests
that catch its faults; a row is `name = [text, what it becomes, test]`. The text is a part of one line that
occurs exactly once in the file; the test is the quickest one that fails. `__main__.py` runs them.
"""

import pathlib
import tomllib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
  """A fault and who catches it."""

  name: str
  file: str  # from the root of the project
  original: str
  fault: str
  test: str  # pytest's name of one test


def read_mutants() -> list[Mutant]:
  """All faults, in the order of the files."""
  return [
    Mutant(name, file, original, fault, f"{tests}::{test}")
    for path in sorted(pathlib.Path(__file__).parent.glob("*.toml"))
    for file, suites in tomllib.loads(path.read_text(encoding="utf-8")).items()
    for tests, rows in suites.items()
    for name, (original, fault, test) in rows.items()
  ]
