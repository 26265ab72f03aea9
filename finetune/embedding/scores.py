"""Scores of vectors on development rows: rank correlation, or how high a query's own positive ranks."""

from collections.abc import Sequence

import numpy as np

from finetune.embedding.batches import TextTable
from finetune.papers.glue_metrics import pearson, spearman

RANKED = ("mrr_10", "recall_1", "recall_10")
SCORED = ("spearman", "pearson")
_BLOCK = 512  # queries compared with all passages at once


def names(has_scores: bool) -> tuple[str, ...]:
  """Returns the names of the metrics; the first chooses the best evaluation."""
  return SCORED if has_scores else RANKED


def measure(vectors: np.ndarray, texts: TextTable, *, has_scores: bool) -> dict[str, float]:
  """Returns {metric: value} of rows from the vectors [texts, width] float32 of their texts.

  With scores the products of both vectors are correlated with them. Without, each query is compared with the
  different second texts of all rows; a rank counts from the best text that a row gives for the query. Vectors
  that are not finite score 0.
  """
  if not np.isfinite(vectors).all():
    return dict.fromkeys(names(has_scores), 0.0)
  first, second = vectors[texts.texts[:, 0]], vectors[texts.texts[:, 1]]
  if has_scores:
    products = np.einsum("nw,nw->n", first, second, dtype=np.float64)
    return {"spearman": spearman(products, texts.scores), "pearson": pearson(products, texts.scores)}
  ranks = _ranks(first, second, texts.keys)
  recall = {f"recall_{depth}": float(np.mean(ranks <= depth)) for depth in (1, 10)}
  return {"mrr_10": float(np.mean(np.where(ranks <= 10, 1.0 / ranks, 0.0))), **recall}


def _ranks(first: np.ndarray, second: np.ndarray, keys: np.ndarray) -> np.ndarray:
  """Returns the rank from 1 of each different query's best positive among all different passages."""
  queries, at_query, of_query = np.unique(keys[:, 0], return_index=True, return_inverse=True)
  _, at_passage, of_passage = np.unique(keys[:, 1], return_index=True, return_inverse=True)
  positives: list[Sequence[int]] = [[] for _ in queries]
  for query, passage in zip(of_query, of_passage):
    positives[query] = [*positives[query], int(passage)]
  passages, ranks = second[at_passage], np.zeros(len(queries), np.int64)
  for start in range(0, len(queries), _BLOCK):
    products = first[at_query[start : start + _BLOCK]] @ passages.T
    for row, of_row in enumerate(products):
      best = of_row[positives[start + row]].max()
      ranks[start + row] = 1 + np.sum(of_row > best)
  return ranks
