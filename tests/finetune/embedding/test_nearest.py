"""Exact search in blocks: the results of one matrix of cosines, and the order of equal ones."""

import numpy as np

from finetune.embedding import nearest
from finetune.embedding.nearest import NearestPassages


def test_results_are_those_of_the_whole_matrix(monkeypatch):
  monkeypatch.setattr(nearest, "_QUERIES", 8)
  random = np.random.default_rng(0)
  queries, passages = (random.normal(size=(count, 6)).astype(np.float32) for count in (19, 53))
  found = NearestPassages(queries, 7, block=10)
  for start in range(0, 53, 9):
    found.add(passages[start : start + 9])
  cosines, numbers = found.results()
  lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(passages, axis=1)
  whole = queries @ passages.T / lengths
  order = np.argsort(-whole, axis=1, kind="stable")[:, :7]
  np.testing.assert_array_equal(numbers, order)
  np.testing.assert_allclose(cosines, np.take_along_axis(whole, order, axis=1), rtol=0, atol=1e-6)


def test_of_equal_passages_the_first_is_nearer_and_a_short_corpus_leaves_places_empty():
  found = NearestPassages(np.ones((1, 2), np.float32), 4, block=3)
  for vectors in ([[1, 0], [2, 2]], [[2, 2]]):
    found.add(np.asarray(vectors, np.float32))
  cosines, numbers = found.results()
  assert numbers[0, :3].tolist() == [1, 2, 0] and cosines[0, 3] == -np.inf
