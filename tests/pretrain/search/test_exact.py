"""Exact search in blocks equals a sort of all inner products."""

import numpy as np

from pretrain.embed.dtypes import compressed, restored, unit
from pretrain.search import exact


def test_the_nearest_rows_of_all_blocks_come_first(monkeypatch):
  monkeypatch.setattr(exact, "_FEWEST", 64)
  monkeypatch.setattr(exact, "_SCORES", 1)
  random = np.random.default_rng(0)
  for dtype in ("float32", "float16", "int8", "binary"):
    for rows, top in ((300, 7), (300, 64), (3, 10), (64, 64)):
      stored = compressed(unit(random.normal(size=(rows, 16)).astype(np.float32)), dtype)
      queries = unit(random.normal(size=(5, 16)).astype(np.float32))
      products = queries @ restored(stored).T
      expected = np.argsort(-products, axis=1, kind="stable")[:, :top]
      found, scores = exact.nearest(stored, queries, top)
      np.testing.assert_allclose(scores, np.take_along_axis(products, expected, axis=1), atol=1e-6)
      if dtype != "binary":  # whose products are often equal up to rounding
        np.testing.assert_array_equal(found, expected)


def test_equal_rows_are_each_found_once(monkeypatch):
  monkeypatch.setattr(exact, "_FEWEST", 4)
  monkeypatch.setattr(exact, "_SCORES", 1)
  stored = np.ones((20, 2), np.float32)
  stored[11] = 2
  rows, products = exact.nearest(stored, stored[:1], 5)
  assert rows[0, 0] == 11 and len(set(rows[0])) == 5 and products.tolist() == [[4, 2, 2, 2, 2]]
