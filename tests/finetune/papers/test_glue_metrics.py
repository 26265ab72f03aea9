"""GLUE scores, by hand. Run: python -m pytest tests/finetune/papers/test_glue_metrics.py"""

import numpy as np
import pytest

from data.errors import DivergedError
from finetune import validate
from finetune.papers import glue_metrics, protocols

# Positive: 0, 1, 3, 4; predicted positive: 0, 1, 2. tp 2, fp 1, fn 2, tn 1.
LABELS = np.array([1, 1, 0, 1, 1, 0])
PREDICTED = np.array([1, 1, 1, 0, 0, 0])


def test_scores_of_two_classes_are_those_of_the_counts():
  assert glue_metrics.accuracy(LABELS, PREDICTED) == 3 / 6
  assert glue_metrics.f1(LABELS, PREDICTED) == pytest.approx(4 / (4 + 1 + 2))
  assert glue_metrics.f1(1 - LABELS, 1 - PREDICTED) == pytest.approx(2 / (2 + 1 + 2))  # of class 1
  assert glue_metrics.f1(np.zeros(3, int), np.zeros(3, int)) == 0.0
  assert glue_metrics.matthews(LABELS, PREDICTED) == pytest.approx((2 * 1 - 1 * 2) / np.sqrt(3 * 4 * 2 * 3))
  assert glue_metrics.matthews(LABELS, np.array([1, 1, 0, 1, 0, 0])) == pytest.approx(
    (3 * 2 - 0 * 1) / np.sqrt(3 * 4 * 2 * 3)
  )


def test_what_a_constant_has_no_correlation_with_scores_0():
  for function in (glue_metrics.matthews, glue_metrics.pearson, glue_metrics.spearman):
    for first, second in ((LABELS, np.ones(6)), (np.zeros(6), LABELS), (np.ones(1), np.ones(1))):
      assert function(first, second) == 0.0


def test_spearman_gives_equal_values_their_average_rank():
  # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
  found = glue_metrics.spearman(np.array([0.0, 5.0, 5.0, 7.0]), np.array([1.0, 2.0, 3.0, 4.0]))
  assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))


def test_pearson_of_small_differences_about_a_large_mean_is_summed_in_float64():
  y = np.random.default_rng(0).normal(size=1000).astype(np.float32)
  x = np.float32(4096.0) + np.float32(0.01) * y  # rounded to steps of 0.0005
  dx, dy = (v.astype(np.float64) - np.mean(v, dtype=np.float64) for v in (x, y))
  expected = np.sum(dx * dy) / np.sqrt(np.sum(dx**2) * np.sum(dy**2))
  assert glue_metrics.pearson(x, y) == pytest.approx(expected, abs=1e-9)  # in float32 it is 4e-7 away


def test_each_task_has_its_metrics_of_its_outputs():
  # Equal logits are class 0 for accuracy, and class 1 for F1 and Matthews.
  outputs = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [1.0, 0.0]])
  labels = np.array([1, 1, 0, 0])
  assert glue_metrics.score("cola", outputs, labels) == {"matthews": 1.0, "accuracy": 0.5}
  assert glue_metrics.score("mrpc", outputs, labels) == {"accuracy": 0.5, "f1": 1.0}
  logits = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]]
  assert glue_metrics.score("mnli", logits, np.array([0, 1, 2, 0])) == {"accuracy": 0.75}
  # A similarity is ranked on any scale.
  found = glue_metrics.score("stsb", np.array([[0.1], [0.2], [0.9]]), np.array([0.0, 2.5, 5.0]))
  assert list(found) == ["spearman", "pearson"]
  assert found["spearman"] == pytest.approx(1.0) and 0.9 < found["pearson"] < 0.99
  diverged = np.array([[0.0, 1.0], [np.nan, 0.0]])
  with pytest.raises(DivergedError, match="sst2: output 1"):
    glue_metrics.score("sst2", diverged, np.array([0, 1]))
  assert glue_metrics.score_of_run("cola", diverged, np.array([0, 1])) == {"matthews": 0.0, "accuracy": 0.0}


def test_taco_judges_by_f1_where_the_others_judge_by_accuracy():
  judged = {
    p: [glue_metrics.main_metric(t, p) for t in ("qqp", "mrpc", "cola", "stsb", "rte")]
    for p in protocols.NAMES
  }
  others = ["accuracy", "accuracy", "matthews", "spearman", "accuracy"]
  assert judged == {"coco_lm": others, "amos": others, "taco": ["f1", "f1", *others[2:]]}
  assert set(validate.GLUE_TASKS) == set(glue_metrics.METRICS)


def test_average_is_over_eight_tasks_without_wnli_and_halves_of_mnli_have_their_names():
  scores = dict.fromkeys(glue_metrics.METRICS, 0.5) | {"wnli": 0.0, "mnli": 0.9}
  assert len(glue_metrics.AVERAGED) == 8
  assert glue_metrics.average(scores) == pytest.approx((7 * 0.5 + 0.9) / 8)
  shown = [(glue_metrics.shown_task(*row), glue_metrics.shown_metric(row[1])) for row in (
    ("mnli", "accuracy"), ("mnli", "accuracy_mm"), ("stsb", "pearson"), ("mine", "f1"),
  )]  # fmt: skip
  assert shown == [
    ("MNLI-m", "accuracy"), ("MNLI-mm", "accuracy"), ("STS-B", "pearson"), ("mine", "f1"),
  ]  # fmt: skip
