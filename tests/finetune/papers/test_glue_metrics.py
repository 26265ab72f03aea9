"""GLUE scores, by hand. Run: python -m pytest tests/finetune/papers/test_glue_metrics.py"""

import numpy as np
import pytest

from data.errors import DivergedError
from finetune import validate
from finetune.papers import glue_metrics, protocols

# Positive: 0, 1, 3, 4; predicted positive: 0, 1, 2. tp 2, fp 1, fn 2, tn 1.
LABELS = np.array([1, 1, 0, 1, 1, 0])
PREDICTED = np.array([1, 1, 1, 0, 0, 0])


def logits_of(classes, num_classes=2):
  """Logits whose largest is the given class."""
  return np.eye(num_classes, dtype=np.float32)[classes]


def test_scores_of_two_classes_are_those_of_the_counts():
  assert glue_metrics.accuracy(LABELS, PREDICTED) == 3 / 6
  assert glue_metrics.f1(LABELS, PREDICTED) == pytest.approx(4 / (4 + 1 + 2))
  assert glue_metrics.matthews(LABELS, PREDICTED) == pytest.approx((2 * 1 - 1 * 2) / np.sqrt(3 * 4 * 2 * 3))


def test_f1_is_of_class_1():
  assert glue_metrics.f1(1 - LABELS, 1 - PREDICTED) == pytest.approx(2 / (2 + 1 + 2))


@pytest.mark.parametrize("function", [glue_metrics.matthews, glue_metrics.pearson, glue_metrics.spearman])
@pytest.mark.parametrize(
  "first, second", [(LABELS, np.ones(6)), (np.zeros(6), LABELS), (np.ones(1), np.ones(1))]
)
def test_what_a_constant_has_no_correlation_with_scores_0(function, first, second):
  assert function(first, second) == 0.0


def test_f1_without_any_positive_is_0():
  assert glue_metrics.f1(np.zeros(3, int), np.zeros(3, int)) == 0.0


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


def test_equal_logits_are_class_0_for_accuracy_and_class_1_for_matthews():
  outputs = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [1.0, 0.0]])
  assert glue_metrics.score("cola", outputs, np.array([1, 1, 0, 0])) == {"matthews": 1.0, "accuracy": 0.5}
  assert glue_metrics.score("mrpc", outputs, np.array([1, 1, 0, 0])) == {"accuracy": 0.5, "f1": 1.0}


def test_three_classes_have_accuracy_alone():
  found = glue_metrics.score("mnli", logits_of([0, 1, 2, 2], 3), np.array([0, 1, 2, 0]))
  assert found == {"accuracy": 0.75}


def test_similarity_is_ranked_on_any_scale():
  found = glue_metrics.score("stsb", np.array([[0.1], [0.2], [0.9]]), np.array([0.0, 2.5, 5.0]))
  assert list(found) == ["spearman", "pearson"]
  assert found["spearman"] == pytest.approx(1.0)
  assert found["pearson"] < 0.99


def test_taco_judges_by_f1_where_the_others_judge_by_accuracy():
  judged = {
    p: [glue_metrics.main_metric(t, p) for t in ("qqp", "mrpc", "cola", "stsb", "rte")]
    for p in protocols.NAMES
  }
  others = ["accuracy", "accuracy", "matthews", "spearman", "accuracy"]
  assert judged == {"coco_lm": others, "amos": others, "taco": ["f1", "f1", *others[2:]]}


def test_average_is_over_eight_tasks_without_wnli():
  scores = dict.fromkeys(glue_metrics.METRICS, 0.5) | {"wnli": 0.0, "mnli": 0.9}
  assert len(glue_metrics.AVERAGED) == 8
  assert glue_metrics.average(scores) == pytest.approx((7 * 0.5 + 0.9) / 8)


def test_output_that_is_not_finite_is_divergence():
  with pytest.raises(DivergedError, match="sst2: output 1"):
    glue_metrics.score("sst2", np.array([[0.0, 1.0], [np.nan, 0.0]]), np.array([0, 1]))


def test_the_tasks_that_a_config_may_name_have_metrics():
  assert set(validate.GLUE_TASKS) == set(glue_metrics.METRICS)
