"""Equal and nearly equal documents: planted ones are found, whoever compares them."""

import collections
import itertools
import pathlib
import random

import numpy as np
import pytest

from data import sources
from data.clean import duplicates
from data.prepare import engine

pytest.importorskip("rensa", reason="needs requirements-clean.txt")

WORDS = [f"w{n}" for n in range(5000)]


def document(seed: int, size: int = 300) -> list[str]:
  """Returns a document of random words."""
  return [" ".join(random.Random(seed).choices(WORDS, k=size))]


def edited(original: list[str], changes: int, seed: int) -> list[str]:
  """Returns a document with other words at so many places."""
  tokens = original[0].split()
  for place in random.Random(seed).sample(range(len(tokens)), changes):
    tokens[place] = f"new{place}"
  return [" ".join(tokens)]


def similarity(one: list[str], other: list[str]) -> float:
  """Returns the part of runs of five words that two documents share, by counting them."""
  runs = []
  for words in (one[0].split(), other[0].split()):
    runs.append({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
  return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


class Corpus:
  """Documents of several units; picklable."""

  def __init__(self, units: list[list[list[str]]]):
    self._units = units
    self.units = [sources.Unit("file", f"{number}.txt") for number in range(len(units))]

  def __call__(self, unit: sources.Unit):
    return enumerate(self._units[self.units.index(unit)])


def dropped(
  corpus: Corpus, directory: pathlib.Path, sketch, pool=None
) -> dict[tuple[int, int], tuple[int, int]]:
  """Returns {(unit, index) of a dropped document: those of its first duplicate}."""
  duplicates.find(sketch, corpus, directory, corpus.units, pool or engine.Pool(None), name="near")
  found = {}
  for number, unit in enumerate(corpus.units):
    for index, *kept in np.load(duplicates.list_of(directory, unit)).tolist():
      found[number, index] = tuple(kept)
  return found


def planted() -> tuple[Corpus, dict]:
  """A corpus of four units, and what is to be dropped of it at a similarity of 0.8."""
  first, second, third, fourth = (document(seed) for seed in range(4))
  near = [edited(first, 3, seed=2), edited(third, 60, seed=3)]  # the second is not near
  units = [
    [first, second, edited(second, 2, seed=1)],
    [[], third, first],
    [],
    [fourth, *near, ["Short One"], ["short one"], []],
  ]
  return Corpus(units), {(0, 2): (0, 1), (1, 2): (0, 0), (3, 1): (0, 0), (3, 4): (3, 3)}


def test_all_but_the_first_of_a_group_are_dropped(tmp_path):
  corpus, expected = planted()
  assert dropped(corpus, tmp_path / "near", duplicates.near(0.8)) == expected
  assert dropped(corpus, tmp_path / "exact", duplicates.EXACT) == {(1, 2): (0, 0)}
  assert sorted(path.name for path in tmp_path.iterdir()) == ["exact", "near"]


def test_ranges_and_order_change_nothing(tmp_path, monkeypatch):
  """Two processes are compared in tests/data/prepare/test_clean.py."""
  corpus, expected = planted()
  assert dropped(corpus, tmp_path / "one", duplicates.near(0.8)) == expected
  for name in ("KEYS_PER_RANGE", "JOINED"):
    monkeypatch.setattr(duplicates, name, 10)

  class Backwards:
    def map(self, function, *items, name):
      del name
      return [function(*arguments) for arguments in reversed(list(zip(*items)))][::-1]

  assert dropped(corpus, tmp_path / "backwards", duplicates.near(0.8), Backwards()) == expected
  one, other = (sorted((tmp_path / name).iterdir()) for name in ("one", "backwards"))
  assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_planted_edits_are_found_as_counting_finds_them(tmp_path):
  """Three standard errors of 128 numbers beside the threshold no pair is missed or taken for another."""
  for threshold, most_changes in ((0.5, 40), (0.8, 14)):
    originals = [document(seed) for seed in range(150)]
    edits = [edited(original, 1 + seed % most_changes, seed) for seed, original in enumerate(originals)]
    error = 3 * (threshold * (1 - threshold) / 128) ** 0.5
    found = dropped(Corpus([originals, edits]), tmp_path / f"{threshold}", duplicates.near(threshold))
    seen = collections.Counter()
    for index, (original, edit) in enumerate(zip(originals, edits)):
      distance = similarity(original, edit) - threshold
      if abs(distance) > error:
        assert found.get((1, index)) == ((0, index) if distance > 0 else None), (index, distance)
        seen[distance > 0] += 1
    assert min(seen[True], seen[False]) >= 10
    assert set(found) <= {(1, index) for index in range(150)}


def test_a_group_is_all_that_pairs_connect():
  pairs = [np.array([[1, 4], [2, 3]]), np.zeros((0, 2), np.int64), np.array([[4, 6], [3, 4], [7, 8]])]
  expected = [0, 1, 1, 1, 1, 5, 1, 7, 7]
  for order in itertools.permutations(pairs):
    assert duplicates.join(order, 9).tolist() == expected


def test_bands_are_as_long_as_they_may_be():
  """At 0.8: 18 bands of 7 find 98.6 % of pairs at the threshold, 16 of 8 only 94.7 %."""
  expected = {0.3: (64, 2), 0.5: (42, 3), 0.8: (18, 7), 0.9: (10, 12), 1.0: (1, 128)}
  shapes = {threshold: duplicates.near(threshold) for threshold in expected}
  assert {threshold: (sketch.bands, sketch.rows) for threshold, sketch in shapes.items()} == expected
  keys = duplicates.band_keys(np.zeros(128, np.uint16), shapes[0.8])
  assert keys.shape == (18,) and np.unique(keys).size == 18  # equal bands at other places


def test_case_and_characters_of_scripts_without_spaces():
  near = duplicates.near(0.8)
  one, other = (
    duplicates.signature([text], near) for text in ("An Old Text of Words", "an old text of words")
  )
  np.testing.assert_array_equal(one, other)
  characters = [chr(0x4E00 + n) for n in range(400)]
  others = [chr(0x6E00 + n) if n % 20 == 10 else character for n, character in enumerate(characters)]
  one, other = (duplicates.signature(["".join(text)], near) for text in (characters, others))
  # Of 391 runs of 10 characters 191 stay, so 191 of 591 are shared; of runs of 5 it would be 296 of 496.
  assert abs((one == other).mean() - 191 / 591) < 0.12
  assert duplicates.signature(["\u3000"], near) is None
