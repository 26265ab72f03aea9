"""Scores results of retrieval with trec_eval's code, and differences of two systems. Imports no jax."""

import numpy as np

from finetune.embedding.beir import Beir

# Names in reports -> pytrec_eval's; the first decides. MRR@10 is made of the rank of the first relevant one.
METRICS = {
  "nDCG@10": "ndcg_cut_10",
  "MRR@10": "recip_rank",
  "recall@10": "recall_10",
  "recall@100": "recall_100",
  "MAP@100": "map_cut_100",
}
MOST = 100  # passages that are scored of each query


def depth(data: Beir) -> int:
  """Returns the number of passages to search: one more than are scored, since a query's own is ignored."""
  return min(MOST + 1, len(data.ids))


def with_copies(
  similarities: np.ndarray, numbers: np.ndarray, number_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns results [queries, depth] among all passages from those among the different ones.

  `number_of` [passages] is the number of each passage's text among the different ones.
  """
  copies = np.bincount(number_of)
  members = np.split(np.argsort(number_of, kind="stable"), np.cumsum(copies)[:-1])
  depth, made = numbers.shape[1], []
  for values, found in zip(similarities, numbers):
    passages = np.concatenate([members[number] for number in found])
    made.append((np.repeat(values, copies[found])[:depth], passages[:depth]))
  return np.stack([values for values, _ in made]), np.stack([passages for _, passages in made])


def scores(data: Beir, similarities: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
  """Returns {metric: [queries] float64} for results of `depth(data)` passages, largest similarity first.

  A similarity of -inf is no result. As in BEIR, a passage with the id of the query is ignored.
  """
  run = {}
  for query, values, found in zip(data.queries, similarities.tolist(), numbers.tolist()):
    results = {data.ids[number]: value for value, number in zip(values, found) if value > -np.inf}
    results.pop(query, None)
    run[query] = dict(list(results.items())[:MOST])
  import pytrec_eval  # here: of the extra `embeddings`

  measures = {"ndcg_cut.10", "recip_rank", "recall.10,100", "map_cut.100"}
  by_query = pytrec_eval.RelevanceEvaluator(data.qrels, measures).evaluate(run)
  made = {
    name: np.asarray([by_query[query][measure] for query in data.queries])
    for name, measure in METRICS.items()
  }
  made["MRR@10"] = np.where(made["MRR@10"] > 1 / 10.5, made["MRR@10"], 0.0)
  return made


def difference(ours: np.ndarray, others: np.ndarray) -> tuple[float, float | None]:
  """Returns the mean of `ours - others` [queries], and the half width of its 95 % interval.

  The half width is 1.96 standard errors of the paired differences; None for a single query.
  """
  paired = ours - others
  width = 1.96 * float(paired.std(ddof=1)) / len(paired) ** 0.5 if len(paired) > 1 else None
  return float(paired.mean()), width
