"""Losses of fine-tuning by hand, a head on [CLS]; buckets, the order of examples, and batches."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import finetune.search.problem
from data.errors import DataError
from finetune.search import examples as of_examples
from finetune.search.examples import Examples, TrainingOrder, bucket_lengths, make_buckets, pad
from finetune.search.problem import HeadSettings, make_problem
from pretrain.models import heads
from pretrain.models.encoder import encode
from tests.pretrain.models import small_encoder
from tests.pretrain.models.small_encoder import IDS, KEYS, MASK, TOKENS
from tests.pretrain.one_program import OneProgramEach, one_program

losses = OneProgramEach(finetune.search.problem)

INF = np.inf


def test_classes_cost_the_negative_log_of_their_probability_times_their_weights():
  logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
  loss = losses.classification_loss(logits, np.array([1, 2]), np.array([1.0, 0.5]))
  np.testing.assert_allclose(loss, -np.log(0.25) - 0.5 * np.log(0.7), rtol=1e-6)
  loss = losses.classification_loss(
    logits, np.array([0, 1]), np.array([1.0, 2.0]), class_weights=(3.0, 0.5, 9.0)
  )
  np.testing.assert_allclose(loss, -3 * np.log(0.5) - 2 * 0.5 * np.log(0.2), rtol=1e-6)
  # Smoothing gives a share of the target to all classes.
  loss = losses.classification_loss(logits[:1], np.array([0]), np.ones(1), smoothing=0.3)
  np.testing.assert_allclose(loss, -np.array([0.8, 0.1, 0.1]) @ logits[0], rtol=1e-6)


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
OPTIONS = {"class_weights": (2.0, 1.0, 1.0), "smoothing": 0.1}
LOSSES = {
  "classes": lambda x, w: losses.classification_loss(x, np.array([1, -1, 0, 9]), w),
  "weighted": lambda x, w: losses.classification_loss(x, np.array([1, -1, 0, 9]), w, **OPTIONS),
  "several": lambda x, w: losses.multilabel_loss(x, np.eye(4)[:, :3], w, **OPTIONS),
  "regression": lambda x, w: losses.regression_loss(x[:, :1], np.array([1.0, np.nan, 1.0, 1.0]), w),
  "span": lambda x, w: losses.answer_span_loss(x, x, np.array([1, 3, 0, 1]), np.array([2, -1, 0, 1]), w),
}


def test_padding_gives_exactly_nothing_whatever_is_in_it():
  row, weights = np.array([[0.5, -1.0, 2.0]]), np.array([1.0, 0.0, 0.0, 0.0])
  for name, loss in LOSSES.items():
    function = one_program(jax.value_and_grad(loss))
    value, gradient = jax.device_get(function(np.concatenate([row, PADDING]), weights))
    quiet, _ = function(np.concatenate([row, np.ones((3, 3))]), weights)
    assert value == quiet and np.isfinite(value), name
    assert not gradient[1:].any() and gradient[0].any(), name


def test_labels_that_are_none_are_never_taken_for_others():
  for label in (-1, 3):
    assert np.isnan(losses.classification_loss(np.zeros((2, 3)), np.array([0, label]), np.ones(2)))
  start = np.array([[1.0, -INF]])  # a target that is not allowed
  assert np.isposinf(losses.answer_span_loss(start, start, np.array([1]), np.array([0]), np.ones(1)))


def test_half_precision_logits_are_summed_in_float32():
  logits = np.zeros((4096, 2), jnp.bfloat16)
  loss = losses.classification_loss(logits, np.zeros(4096, np.int32), np.ones(4096))
  assert loss.dtype == jnp.float32
  np.testing.assert_allclose(loss, 4096 * np.log(2.0), rtol=1e-5)


def test_several_labels_cost_the_mean_of_their_binary_entropies():
  chances, targets = np.array([[0.9, 0.2, 0.4]]), np.array([[1.0, 0.0, 1.0]])
  logits, right = np.log(chances / (1 - chances)), np.log([0.9, 0.8, 0.4])
  smooth = 0.75 * right + 0.25 * np.log([0.1, 0.2, 0.6])
  for options, by_label in (
    ({}, right),
    ({"class_weights": (2.0, 5.0, 1.0)}, right * [2, 1, 1]),  # the label with weight 5 is no target here
    ({"smoothing": 0.5}, smooth),
    ({"class_weights": (3.0, 99.0, 1.0), "smoothing": 0.5}, smooth * [3, 1, 1]),
  ):
    loss = losses.multilabel_loss(logits, targets, np.array([0.5]), **options)
    np.testing.assert_allclose(loss, -0.5 * by_label.mean(), rtol=1e-5)


# Its head has a norm, too.
CONFIG = dataclasses.replace(
  small_encoder.CONFIG, dropout=0.3, attention_dropout=0.3, num_layers=1, norm_placement="pre"
)
BATCH = {"ids": IDS, "labels": np.int32([0, 2, 1, 1]), "weights": np.float32([1, 1, 1, 0])}


def test_a_head_on_cls_gives_what_it_gives_on_a_whole_last_layer():
  problem = make_problem(CONFIG, HeadSettings(), num_outputs=3, pad_id=TOKENS.pad)
  params = {"encoder": small_encoder.init_encoder(CONFIG), "heads": problem.init_heads(jax.random.key(3))}

  def whole(params):
    """The problem's outputs from a last layer that is computed for every token."""
    hidden = encode(params["encoder"], CONFIG, IDS, MASK, pad_id=TOKENS.pad, row_keys=KEYS)[1]
    head, rates = params["heads"]["classification"], {"dropout": 0.1, "input_dropout": 0.1}
    return heads.apply_classification_head(head, hidden.last[:, 0], row_keys=KEYS, config=CONFIG, **rates)

  def loss_and_gradient(outputs):
    def loss(params):
      logits = outputs(params)
      return problem.loss(logits, BATCH)[0], logits

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))

  (_, found), gradient = loss_and_gradient(lambda params: problem.outputs(params, BATCH, KEYS))
  (_, expected), reference = loss_and_gradient(whole)
  assert float(np.abs(expected).max()) > 0.05
  printed = str(jax.make_jaxpr(lambda p: problem.outputs(p, BATCH, None))(params))
  assert (
    f"{len(IDS)},1,{CONFIG.mlp_size}]" in printed
  )  # the MLP of the last layer is computed for [CLS] alone
  np.testing.assert_allclose(found, expected, atol=1e-5)
  for (path, a), b in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(reference)):
    atol = 1e-5 * max(float(np.max(np.abs(b))), 0.5)
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


PAD = 1


def _examples(sizes) -> Examples:
  ids = [np.arange(10, 10 + size, dtype=np.int32) for size in sizes]
  tokens = {"allowed": [np.ones(size, bool) for size in sizes]}
  return Examples(ids, {"labels": np.arange(len(sizes), dtype=np.int32)}, tokens)


def test_a_batch_is_filled_up_with_rows_of_weight_zero():
  batch = pad(_examples([3, 2, 4]), [2, 0], length=5, batch_size=3, pad_id=PAD)
  np.testing.assert_array_equal(batch["ids"], [[10, 11, 12, 13, 1], [10, 11, 12, 1, 1], [1, 1, 1, 1, 1]])
  np.testing.assert_array_equal(batch["weights"], [1, 1, 0])
  np.testing.assert_array_equal(batch["labels"], [2, 0, 0])
  assert batch["allowed"].dtype == bool
  np.testing.assert_array_equal(batch["allowed"].sum(axis=1), [4, 3, 0])
  with pytest.raises(DataError, match="4 tokens"):
    pad(_examples([4]), [0], length=3, batch_size=1, pad_id=PAD)
  with pytest.raises(DataError, match="no examples"):
    bucket_lengths(np.asarray([], np.int64), most=2, multiple=8)


def _padded(sizes, lengths) -> int:
  return sum(min(length for length in lengths if length >= size) for size in sizes)


def test_no_other_choice_of_lengths_pads_less():
  for most in (1, 2, 3, 5):
    sizes = np.random.default_rng(most).integers(1, 57, 40)
    found, possible = bucket_lengths(sizes, most=most, multiple=8), range(8, 64, 8)
    assert len(found) <= most and all(length % 8 == 0 for length in found)
    rivals = (choice for k in range(1, most + 1) for choice in itertools.combinations(possible, k))
    assert _padded(sizes, found) == min(_padded(sizes, one) for one in rivals if one[-1] >= max(sizes))


def test_buckets_hold_every_example_once_and_stay_below_the_longest_allowed():
  sizes = [3, 9, 17, 30, 8, 16]
  buckets = make_buckets(_examples(sizes), most=3, multiple=8, max_length=30)
  assert buckets.lengths == (8, 16, 30)
  assert [rows.tolist() for rows in buckets.members] == [[0, 4], [1, 5], [2, 3]]
  assert buckets.num_batches(2) == [1, 1, 1] and buckets.num_batches(1) == [2, 2, 2]
  assert f"({1 - 83 / (16 + 32 + 60):.0%} padding)" in buckets.describe(np.asarray(sizes))


def test_seeds_share_the_shapes_and_not_the_examples_of_an_epoch():
  sizes = np.random.default_rng(0).integers(2, 40, 50)
  order = TrainingOrder(make_buckets(_examples(sizes), most=3, multiple=8, max_length=40), 8, shape_seed=5)
  size = order.steps_per_epoch
  first, second = ([order.batch(seed, step) for step in range(3 * size)] for seed in (1, 2))
  for epoch in range(3):  # takes every example once
    assert sorted(np.concatenate([rows for _, rows in first[epoch * size : (epoch + 1) * size]])) == [
      *range(50)
    ]
  for one, other in zip(first, second):
    assert (one[0], len(one[1])) == (other[0], len(other[1])) and max(sizes[one[1]]) <= one[0]
  assert any(set(a) != set(b) for (_, a), (_, b) in zip(first, second))
  epochs = [[length for length, _ in part] for part in (first[:size], first[size : 2 * size])]
  assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
  together = [
    {frozenset(rows.tolist()) for _, rows in part} for part in (first[:size], first[size : 2 * size])
  ]
  assert not together[0] & together[1]  # no batch of an epoch is one of the next


def test_evaluation_visits_every_example_once():
  examples = _examples(np.random.default_rng(0).integers(1, 33, 50))
  buckets = make_buckets(examples, most=3, multiple=8, max_length=32)
  batches = list(of_examples.evaluation_batches(examples, buckets, batch_size=7, pad_id=PAD))
  assert sorted(np.concatenate([rows for rows, _ in batches])) == list(range(50))
  for rows, batch in batches:
    assert batch["labels"].shape == (7,)
    np.testing.assert_array_equal(batch["labels"][: len(rows)], rows)
