"""The steps on real English text: books, articles and the World Factbook."""

import collections

import pytest

from data import sources
from data.clean import steps
from lab.speed import cleaning
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


def test_planted_copies_are_dropped_and_nothing_else(documents):
  originals, copies = cleaning.planted(documents)
  line = cleaning.found(
    0.8, originals, copies, lambda unit: enumerate(originals if unit.name == "originals" else copies)
  )
  assert line["found_clearly_above"] == line["clearly_above"] == 187
  assert line["found_above"] >= 0.9 * line["above"]
  assert line["found_below"] <= 0.03 * line["below"] and line["found_clearly_below"] <= 3
  assert line["originals_dropped"] == 0
