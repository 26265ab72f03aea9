"""Scores of pairs: those of sentence-transformers, thresholds among equal similarities, the interval."""

import numpy as np
import pytest

from finetune.embedding import pair_scores


@pytest.mark.parametrize(("seed", "digits"), [(0, 7), (1, 1), (2, 0)])  # with more and more equal ones
def test_scores_of_two_classes_are_those_of_sentence_transformers(seed, digits):
  evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
  peer, random = evaluation.BinaryClassificationEvaluator, np.random.default_rng(seed)
  gold = (random.random(60) < 0.4).astype(float)
  similarities = np.round(gold * 0.3 + random.normal(0, 0.4, 60), digits).astype(np.float32)
  found = pair_scores.of_classes(similarities, gold)
  accuracy = peer.find_best_acc_and_threshold(similarities, gold, True)
  f1, _, _, threshold = peer.find_best_f1_and_threshold(similarities, gold, True)
  assert (found["accuracy"], found["f1"]) == pytest.approx((accuracy[0], f1), abs=1e-12)
  assert (found["accuracy_threshold"], found["f1_threshold"]) == pytest.approx((accuracy[1], threshold))


def test_a_threshold_may_call_no_pair_positive():
  found = pair_scores.of_classes(np.float32([0.9, 0.5, 0.5, 0.1]), np.float64([0, 1, 0, 0]))
  assert found["accuracy"] == 0.75 and found["accuracy_threshold"] > np.float32(0.9)
  assert (found["f1"], found["f1_threshold"]) == (0.5, pytest.approx(0.3))
  assert found["average_precision"] == pytest.approx(1 / 3)


def test_the_interval_of_spearman_is_that_of_resampled_pairs(monkeypatch):
  random = np.random.default_rng(0)
  gold = random.normal(size=300)
  similarities = (gold + random.normal(size=300)).astype(np.float32)
  found = pair_scores.of_numbers(similarities, gold)
  assert found["low"] < found["spearman"] < found["high"] and 0.6 < found["pearson"] < 0.8
  monkeypatch.setattr(pair_scores, "_AT_ONCE", 2_000)  # six resamples at a time
  assert pair_scores.of_numbers(similarities, gold) == found
  # Fisher's transform gives about the same width.
  width = np.diff(np.tanh(np.arctanh(found["spearman"]) + np.float64([-1.96, 1.96]) * 1.03 / np.sqrt(297)))
  assert found["high"] - found["low"] == pytest.approx(float(width[0]), rel=0.15)
