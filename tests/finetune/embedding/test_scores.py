"""Scores of development rows by hand."""

import numpy as np

from finetune.embedding import scores
from finetune.embedding.batches import TextTable

# Queries at 0, 90 and 20 degrees; passages at 10, 80 and 85 degrees.
_ANGLES = np.deg2rad([0, 90, 20, 10, 80, 85])
VECTORS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1).astype(np.float32)


def _texts(pairs, of_scores=None) -> TextTable:
  numbers = np.asarray(pairs)
  given = np.zeros(len(pairs)) if of_scores is None else np.asarray(of_scores)
  return TextTable([np.zeros(1, np.int32)] * 6, numbers, numbers.astype(np.int32), given.astype(np.float32))


def test_a_query_counts_the_rank_of_its_best_positive():
  # Query 0 ranks passage 3 first. Query 1 ranks 5, 4, 3: its positive 4 is second. Query 2 has 5, the last.
  found = scores.measure(VECTORS, _texts([(0, 3), (1, 4), (2, 5)]), has_scores=False)
  np.testing.assert_allclose([found["mrr_10"], found["recall_1"]], [(1 + 1 / 2 + 1 / 3) / 3, 1 / 3])
  assert found["recall_10"] == 1
  both = scores.measure(VECTORS, _texts([(0, 3), (1, 4), (1, 5)]), has_scores=False)
  assert both["mrr_10"] == 1


def test_scores_are_compared_with_products_by_rank():
  found = scores.measure(VECTORS, _texts([(0, 3), (2, 4), (2, 5)], [3, 2, 1]), has_scores=True)
  assert found["spearman"] > 0.99 and 0.5 < found["pearson"] < 1
  assert scores.measure(VECTORS, _texts([(0, 3), (2, 5)], [0, 1]), has_scores=True)["spearman"] < -0.99


def test_vectors_that_are_not_finite_score_nothing():
  broken = VECTORS.copy()
  broken[0, 0] = np.nan
  assert set(scores.measure(broken, _texts([(0, 3), (1, 4)]), has_scores=False).values()) == {0.0}
