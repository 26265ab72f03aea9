"""Damaged files for each parser of other people's files; `make fuzz` reads 10,000 of each."""

import importlib.util

from tests import fuzz
from tests.fuzz_files import PARSERS

NUMBER = 100
TORCH = ("bin", "fairseq")


def test_damaged_files_are_read_or_refused():
  has_torch = importlib.util.find_spec("torch") is not None
  wrong = []
  for name in PARSERS:
    if has_torch or name not in TORCH:
      counts, failures = fuzz.fuzz(
        name, range(NUMBER)
      )  # here: a fresh process would cost more than the files
      wrong += [f"{name}: {failure}" for failure in failures]
      if sum(counts.values()) != NUMBER or not counts["refused"]:
        wrong.append(f"{name}: {counts}")
  assert not wrong, "\n".join(wrong)
