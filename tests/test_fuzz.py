"""250 damaged files for each parser of other people's files; `make fuzz` reads 10,000 of each."""

import importlib.util
import pathlib

import pytest

from data.errors import DataError
from tests import fuzz
from tests.fuzz_files import PARSERS, Parser

NUMBER = 250
TORCH = ("bin", "fairseq")


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_are_read_or_refused(name):
  if name in TORCH and importlib.util.find_spec("torch") is None:
    pytest.skip("needs requirements-export.txt")
  counts, failures = fuzz.fuzz(name, range(NUMBER))  # here: a fresh process would cost more than the files
  assert not failures, failures[:3]
  assert sum(counts.values()) == NUMBER and counts["refused"] > 0


def _raise(folder: pathlib.Path):
  raise KeyError("a")


def _write_beside(folder: pathlib.Path):
  (folder.parent / "beside").write_text("")


def _hang(folder: pathlib.Path):
  while True:
    pass


def _refuse_in_two_lines(folder: pathlib.Path):
  raise DataError("one\ntwo")


@pytest.mark.parametrize(
  "read, found",
  [
    (_raise, "KeyError"),
    (_write_beside, "it wrote beside the file"),
    (_hang, "no answer within 1.0 s"),  # of the first file
    (_refuse_in_two_lines, "an error of 2 lines"),
  ],
)
def test_what_should_not_happen_is_a_failure(monkeypatch, read, found):
  parser = Parser(
    "file", lambda folder: (folder / "file").write_bytes(b"sound"), read, lambda rng, content: content
  )
  monkeypatch.setattr(fuzz, "SECONDS", 0.25)
  monkeypatch.setitem(PARSERS, "bad", parser)
  (failure,) = fuzz.fuzz("bad", range(1))[1]
  assert found in failure
