"""Losses of fine-tuning, by hand. Run: python -m pytest tests/finetune/search/test_losses.py"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import finetune.search.losses
from tests.pretrain.one_program import OneProgramEach, one_program

losses = OneProgramEach(finetune.search.losses)

INF = np.inf


def test_classes_cost_the_negative_log_of_their_probability():
  logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
  loss = losses.classification_loss(logits, np.array([1, 2]), np.ones(2))
  np.testing.assert_allclose(loss, -np.log(0.25) - np.log(0.8), rtol=1e-6)


def test_weights_are_factors():
  logits, labels = np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([0, 1])
  loss = losses.classification_loss(logits, labels, np.array([0.25, 0.5]))
  np.testing.assert_allclose(loss, 0.75 * np.log(2.0), rtol=1e-6)


def test_regression_costs_the_squared_error():
  loss = losses.regression_loss(np.array([[1.0], [5.0]]), np.array([3.0, 4.5]), np.array([1.0, 2.0]))
  assert float(loss) == 4.0 + 2 * 0.25


def test_span_costs_half_of_start_and_half_of_end():
  start, end = np.log(np.array([[0.25, 0.75]])), np.log(np.array([[0.5, 0.5]]))
  loss = losses.answer_span_loss(start, end, np.array([0]), np.array([1]), np.ones(1))
  np.testing.assert_allclose(loss, 0.5 * (np.log(4.0) + np.log(2.0)), rtol=1e-6)


def test_positions_that_are_not_allowed_have_no_share_and_no_gradient():
  start = np.array([[1.0, -INF, 2.0, -INF]])

  def loss(start):
    return losses.answer_span_loss(start, start, np.array([2]), np.array([0]), np.ones(1))

  value, gradient = one_program(jax.value_and_grad(loss))(start)
  np.testing.assert_allclose(value, 0.5 * (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(1.0))), rtol=1e-6)
  assert np.all(np.isfinite(gradient))
  gradient = np.asarray(gradient)
  np.testing.assert_array_equal(gradient[0, [1, 3]], 0.0)
  # Softmax minus the halves of both targets.
  np.testing.assert_allclose(gradient[0, 2], 1.0 / (1.0 + np.exp(-1.0)) - 0.5, rtol=1e-5)


# Rows of padding may hold anything: -1 and a label too large, NaN, a window in which nothing is allowed.
PADDING = np.array([[np.nan, 1.0, 2.0], [-INF, -INF, -INF], [3.0, 1.0, INF]])
LOSSES = {
  "classes": lambda x, w: losses.classification_loss(x, np.array([1, -1, 0, 9]), w),
  "regression": lambda x, w: losses.regression_loss(x[:, :1], np.array([1.0, np.nan, 1.0, 1.0]), w),
  "span": lambda x, w: losses.answer_span_loss(x, x, np.array([1, 3, 0, 1]), np.array([2, -1, 0, 1]), w),
}


@pytest.mark.parametrize("name", LOSSES)
def test_padding_gives_exactly_nothing_whatever_is_in_it(name):
  row = np.array([[0.5, -1.0, 2.0]])
  function, weights = LOSSES[name], np.array([1.0, 0.0, 0.0, 0.0])
  function = one_program(jax.value_and_grad(function))
  value, gradient = function(np.concatenate([row, PADDING]), weights)
  quiet, _ = function(np.concatenate([row, np.ones((3, 3))]), weights)
  assert value == quiet
  gradient = np.asarray(gradient)
  np.testing.assert_array_equal(gradient[1:], 0.0)
  assert np.any(gradient[0] != 0.0)


@pytest.mark.parametrize("label", [-1, 3])
def test_label_outside_the_classes_is_never_taken_for_another(label):
  logits = np.zeros((2, 3))
  assert np.isnan(losses.classification_loss(logits, np.array([0, label]), np.ones(2)))


def test_target_that_is_not_allowed_is_infinitely_wrong():
  start = np.array([[1.0, -INF]])
  assert np.isposinf(losses.answer_span_loss(start, start, np.array([1]), np.array([0]), np.ones(1)))


def test_half_precision_logits_are_summed_in_float32():
  logits = np.zeros((4096, 2), jnp.bfloat16)
  loss = losses.classification_loss(logits, np.zeros(4096, np.int32), np.ones(4096))
  assert loss.dtype == jnp.float32
  np.testing.assert_allclose(loss, 4096 * np.log(2.0), rtol=1e-5)


def test_a_class_counts_as_much_as_its_weight():
  logits, labels = np.log(np.array([[0.5, 0.5], [0.2, 0.8]])), np.array([0, 1])
  loss = losses.classification_loss(logits, labels, np.ones(2), class_weights=(3.0, 0.5))
  np.testing.assert_allclose(loss, -3 * np.log(0.5) - 0.5 * np.log(0.8), rtol=1e-6)


def test_smoothing_gives_a_share_of_the_target_to_all_classes():
  probabilities = np.array([0.5, 0.25, 0.25])
  logits = np.log(np.asarray(probabilities))[None]
  loss = losses.classification_loss(logits, np.array([0]), np.ones(1), smoothing=0.3)
  np.testing.assert_allclose(loss, -np.array([0.8, 0.1, 0.1]) @ np.log(probabilities), rtol=1e-6)


def test_several_labels_cost_the_mean_of_their_binary_entropies():
  chances, targets = np.array([[0.9, 0.2, 0.4]]), np.array([[1.0, 0.0, 1.0]])
  logits = np.log(np.asarray(chances / (1 - chances)))
  loss = losses.multilabel_loss(logits, targets, np.ones(1))
  np.testing.assert_allclose(loss, -np.log([0.9, 0.8, 0.4]).mean(), rtol=1e-6)
  weighted = losses.multilabel_loss(logits, targets, np.ones(1), class_weights=(2.0, 5.0, 1.0))
  np.testing.assert_allclose(weighted, -(np.log([0.9, 0.8, 0.4]) * [2, 1, 1]).mean(), rtol=1e-6)
  smoothed = losses.multilabel_loss(logits, targets, np.ones(1), smoothing=0.5)
  expected = -(0.75 * np.log([0.9, 0.8, 0.4]) + 0.25 * np.log([0.1, 0.2, 0.6])).mean()
  np.testing.assert_allclose(smoothed, expected, rtol=1e-5)
  both = losses.multilabel_loss(logits, targets, np.ones(1), class_weights=(1.0, 99.0, 1.0), smoothing=0.5)
  np.testing.assert_allclose(both, expected, rtol=1e-5)  # the label with weight 99 is no target here


@pytest.mark.parametrize("name", ["classification", "multilabel"])
def test_padding_gives_nothing_with_weights_of_classes_and_smoothing(name):
  options = {"class_weights": (2.0, 1.0, 1.0), "smoothing": 0.1}

  def loss(logits):
    if name == "classification":
      return losses.classification_loss(logits, np.array([0, 1]), np.array([1.0, 0.0]), **options)
    return losses.multilabel_loss(logits, np.eye(3)[:2], np.array([1.0, 0.0]), **options)

  value, gradient = jax.device_get(
    one_program(jax.value_and_grad(loss))(np.array([[0.5, -1.0, 2.0], [np.nan, INF, 1.0]]))
  )
  assert np.isfinite(value) and np.any(gradient[0] != 0.0)
  np.testing.assert_array_equal(gradient[1], 0.0)
