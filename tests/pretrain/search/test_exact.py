"""Exact search in blocks equals a sort of all inner products."""

import numpy as np

from pretrain.embed.schema import unit
from pretrain.search import index


def test_the_nearest_rows_of_all_blocks_come_first(monkeypatch):
  monkeypatch.setattr(index, "_FEWEST", 64)
  monkeypatch.setattr(index, "_SCORES", 1)
  random = np.random.default_rng(0)
  for dtype in ("float32", "float16"):
    for rows, top in ((300, 7), (300, 64), (3, 10), (64, 64)):
      stored = unit(random.normal(size=(rows, 16))).astype(dtype)
      queries = unit(random.normal(size=(5, 16)).astype(np.float32))
      products = queries @ stored.astype(np.float32).T
      expected = np.argsort(-products, axis=1, kind="stable")[:, :top]
      found, scores = index.exact_nearest(stored, queries, top)
      np.testing.assert_allclose(scores, np.take_along_axis(products, expected, axis=1), atol=1e-6)
      np.testing.assert_array_equal(found, expected)


def test_equal_rows_are_each_found_once(monkeypatch):
  monkeypatch.setattr(index, "_FEWEST", 4)
  monkeypatch.setattr(index, "_SCORES", 1)
  stored = np.ones((20, 2), np.float32)
  stored[11] = 2
  rows, products = index.exact_nearest(stored, stored[:1], 5)
  assert rows[0, 0] == 11 and len(set(rows[0])) == 5 and products.tolist() == [[4, 2, 2, 2, 2]]
