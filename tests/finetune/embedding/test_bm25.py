"""BM25: passages with common words, by its formula; texts without words."""

import numpy as np
import pytest

from finetune.embedding import bm25

pytest.importorskip("bm25s")


def test_scores_are_those_of_the_formula():
  scores, numbers = bm25.search(
    iter(["a cat sat", "the dog ran", "", "cats, dogs; a CAT"]), ["Cat sat", "the"], 4
  )
  lengths = [2, 2, 0, 3]  # without stop words
  inverse = {word: np.log(1 + (4 - count + 0.5) / (count + 0.5)) for word, count in (("cat", 2), ("sat", 1))}
  norms = [1.5 * (1 - 0.75 + 0.75 * length / np.mean(lengths)) for length in lengths]
  expected = [(inverse["cat"] + inverse["sat"]) / (1 + norms[0]), inverse["cat"] / (1 + norms[3])]
  assert numbers[0, :2].tolist() == [0, 3] and scores[0, :2] == pytest.approx(expected, rel=1e-5)
  assert (scores[0, 2:] == -np.inf).all() and (scores[1] == -np.inf).all()


def test_texts_without_any_word_have_no_result():
  assert (bm25.search(["the", ""], ["cat", ""], 2)[0] == -np.inf).all()
