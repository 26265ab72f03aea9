"""Scores of retrieval: those of sentence-transformers, ignored and missing results, differences."""

import numpy as np
import pytest

from finetune.embedding import retrieval
from finetune.embedding.beir import Beir


def _beir(qrels: dict, passages: int) -> Beir:
  ids = [f"d{at:03}" for at in range(passages)]
  return Beir("", ids, dict.fromkeys(qrels, ""), qrels, 0)


def test_scores_are_those_of_sentence_transformers():
  evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
  pytest.importorskip("pytrec_eval")
  random = np.random.default_rng(0)
  similarities = random.normal(size=(12, 150)).astype(np.float32)
  data = _beir({}, 150)
  for query in range(12):
    chosen = random.choice(150, random.integers(1, 20), replace=False)
    data.qrels[f"q{query}"] = {data.ids[at]: 1 for at in chosen}
    data.queries[f"q{query}"] = ""
  numbers = np.argsort(-similarities, axis=1)[:, :101]
  found = retrieval.scores(data, np.take_along_axis(similarities, numbers, axis=1), numbers)
  relevant = {query: set(judged) for query, judged in data.qrels.items()}
  at = {"mrr_at_k": [10], "ndcg_at_k": [10], "precision_recall_at_k": [10, 100], "map_at_k": [100]}
  peer = evaluation.InformationRetrievalEvaluator(data.queries, dict.fromkeys(data.ids, ""), relevant, **at)
  hits = [
    [{"corpus_id": name, "score": float(value)} for name, value in zip(data.ids, row)] for row in similarities
  ]
  expected = peer.compute_metrics(hits)
  for name, (kind, most) in {
    "nDCG@10": ("ndcg@k", 10),
    "MRR@10": ("mrr@k", 10),
    "recall@10": ("recall@k", 10),
    "recall@100": ("recall@k", 100),
    "MAP@100": ("map@k", 100),
  }.items():
    assert np.mean(found[name]) == pytest.approx(expected[kind][most], abs=1e-6), name


def test_the_passage_with_the_querys_id_is_ignored_and_no_result_is_scored_0():
  data = _beir({"d001": {"d001": 1, "d002": 1}, "q": {"d000": 1}, "r": {"d003": 0}}, 12)
  similarities = np.float32([[0.9, 0.8, 0.7], [-np.inf] * 3, [0.3, 0.2, 0.1]])
  found = retrieval.scores(data, similarities, np.asarray([[1, 0, 2], [0, 1, 2], [3, 2, 1]]))
  assert found["MRR@10"].tolist() == [0.5, 0, 0] and found["recall@10"].tolist() == [0.5, 0, 0]
  assert (retrieval.depth(data), retrieval.depth(_beir({}, 500)), data.irrelevant) == (12, 101, 1)


def test_the_eleventh_rank_has_no_reciprocal_rank_at_10():
  data = _beir({"q": {"d009": 1}, "r": {"d010": 1}}, 12)
  found = retrieval.scores(
    data, np.linspace(1, 0, 24, dtype=np.float32).reshape(2, 12), np.arange(24).reshape(2, 12) % 12
  )
  assert found["MRR@10"].tolist() == [pytest.approx(0.1), 0] and found["recall@100"].tolist() == [1, 1]


def test_a_difference_has_the_standard_error_of_paired_queries():
  ours, others = np.asarray([0.5, 0.7, 0.9]), np.asarray([0.4, 0.6, 0.5])
  mean, width = retrieval.difference(ours, others)
  assert (mean, width) == pytest.approx((0.2, 1.96 * 0.1))
  assert retrieval.difference(ours[:1], others[:1]) == (pytest.approx(0.1), None)
