"""Near duplicates in real English text: books, articles and the World Factbook."""

import collections
import random

import numpy as np
import pytest

from data import sources
from data.clean import duplicates
from tests.data.clean.test_duplicates import Corpus, dropped, similarity
from tests.data.conftest import SHARED

TEXT = SHARED / "datasets/corpus/pretrain_sample.txt.gz"


@pytest.mark.nightly
@pytest.mark.skipif(not TEXT.is_file(), reason=f"{TEXT} is not there")
def test_planted_copies_are_dropped_and_nothing_else(tmp_path):
  """Copies of the first 2,000 words of each document, with up to an eighth of their words exchanged."""
  request, originals, copies = sources.Request(str(TEXT)), [], []
  (unit,) = sources.plan(request).units
  for number, document in enumerate(sources.read_documents(unit, request, collections.Counter())):
    words = " ".join(document).lower().split()[:2_000]
    if len(words) < 100:
      continue
    rng = random.Random(number)
    originals.append([" ".join(words)])
    for place in rng.sample(range(len(words)), round(rng.uniform(0, 0.125) * len(words))):
      words[place] = rng.choice(words)
    copies.append([" ".join(words)])
  found = dropped(Corpus([originals, copies]), tmp_path / "near", duplicates.near(0.8))
  assert all(unit == 1 for unit, _ in found)
  is_found = np.isin(np.arange(len(copies)), [index for _, index in found])
  similar = np.asarray([similarity(*pair) for pair in zip(originals, copies)])
  clearly = 0.05  # about a standard error of the estimate
  assert is_found[similar >= 0.8 + clearly].sum() == (similar >= 0.8 + clearly).sum() == 187
  assert is_found[similar >= 0.8].mean() >= 0.9
  assert is_found[similar < 0.8].mean() <= 0.03 and is_found[similar < 0.8 - clearly].sum() <= 3
