"""The steps on real English text: books, articles and the World Factbook."""

import collections
import random

import numpy as np
import pytest

from data import sources
from data.clean import duplicates, steps
from data.prepare import workers
from tests.data.conftest import SHARED

TEXT = SHARED / "datasets/corpus/pretrain_sample.txt.gz"

pytestmark = [
  pytest.mark.nightly,
  pytest.mark.skipif(not TEXT.is_file(), reason=f"{TEXT} is not there"),
]
for package in ("rensa", "pycld2"):
  pytest.importorskip(package, reason="needs requirements-clean.txt")


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
  request = sources.Request(str(TEXT))
  (unit,) = sources.plan(request).units
  return list(sources.read_documents(unit, request, collections.Counter()))


def test_rules_for_the_web_leave_books_alone(documents):
  dropped = {
    step.label: sum(isinstance(step.rule(document), str) for document in documents)
    for step in steps.parse("language:en,length:200,words,repetition,symbols,stop_words")
    if step.rule
  }
  expected = {"language:en": 0, "length:200": 0, "words": 0, "repetition": 4, "symbols": 3, "stop_words": 0}
  assert dropped == expected


def planted(documents) -> tuple[list[list[str]], list[list[str]]]:
  """The first 2,000 words of each document, and copies with up to an eighth of their words exchanged."""
  originals, copies = [], []
  for number, document in enumerate(documents):
    words = " ".join(document).split()[:2_000]
    if len(words) < 100:
      continue
    rng = random.Random(number)
    originals.append([" ".join(words)])
    for place in rng.sample(range(len(words)), round(rng.uniform(0, 0.125) * len(words))):
      words[place] = rng.choice(words)
    copies.append([" ".join(words)])
  return originals, copies


def similarity(one: list[str], other: list[str]) -> float:
  """The part of their runs of five words that two documents share, counted."""
  words = [document[0].lower().split() for document in (one, other)]
  runs = [{tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in words]
  return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def test_planted_copies_are_dropped_and_nothing_else(documents, tmp_path):
  originals, copies = planted(documents)
  units = [sources.Unit("file", "originals"), sources.Unit("file", "copies")]
  duplicates.find(
    duplicates.near(0.8),
    lambda unit: enumerate(originals if unit.name == "originals" else copies),
    tmp_path / "lists",
    units,
    workers.Pool(None),
    name="near",
  )
  others, dropped = (np.load(duplicates.list_of(tmp_path / "lists", unit)) for unit in units)
  is_found = np.isin(np.arange(len(copies)), dropped["index"])
  similar = np.asarray([similarity(*pair) for pair in zip(originals, copies)])
  clearly = 0.05  # about a standard error of the estimate
  assert is_found[similar >= 0.8 + clearly].sum() == (similar >= 0.8 + clearly).sum() == 187
  assert is_found[similar >= 0.8].mean() >= 0.9
  assert is_found[similar < 0.8].mean() <= 0.03 and is_found[similar < 0.8 - clearly].sum() <= 3
  assert not len(others)
