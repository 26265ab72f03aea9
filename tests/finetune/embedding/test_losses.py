"""Losses of vectors: by hand, and equal to sentence-transformers' in values and gradients."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune.embedding import losses
from finetune.embedding.problem import StageObjective, _loss
from pretrain.losses import unit_vectors

BOUND = {"rtol": 1e-6, "atol": 1e-6}


def _fields(rows: int, sides: int, **changes) -> dict:
  keys = jnp.arange(rows * sides, dtype=jnp.int32).reshape(rows, sides)
  return {"keys": keys, "scores": jnp.zeros(rows), "weights": jnp.ones(rows), **changes}


def _value(texts, objective, fields) -> jax.Array:
  value, _ = _loss(texts, fields, objective, device=0, devices=1)
  return value / jnp.sum(fields["weights"])


def test_ranking_by_hand():
  """Cosines 1, 0 and 0, 1 at temperature 0.5: each query's loss is log(1 + exp(-2))."""
  texts = jnp.asarray([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
  value = _value(texts, StageObjective("ranking", 0.5, False), _fields(2, 2))
  np.testing.assert_allclose(value, math.log(1 + math.exp(-2)), **BOUND)


def test_equal_positives_and_equal_queries_are_no_negatives_and_get_no_gradient():
  """Rows 0 and 1 have one positive, rows 1 and 2 one query: row 1 has no negative, its loss is exactly 0."""
  random = np.random.default_rng(0)
  texts = jnp.asarray(random.normal(size=(3, 2, 4)), jnp.float32)
  keys = jnp.asarray([[0, 9], [1, 9], [1, 5]], jnp.int32)
  alone = _fields(3, 2, keys=keys, weights=jnp.asarray([0.0, 1.0, 0.0]))
  loss = functools.partial(_value, objective=StageObjective("ranking", 0.1, False), fields=alone)
  value, gradient = jax.value_and_grad(loss)(texts)
  assert value == 0 and not np.any(gradient)
  # Row 0: its own positive against that of row 2 alone.
  rows = _fields(3, 2, keys=keys)
  products = np.einsum("w,nw->n", texts[0, 0], np.asarray(texts[:, 1])) / 0.1
  first, _ = losses.ranking_loss(
    texts[:1, 0], texts[:, 1], jnp.zeros(1, jnp.int32), jnp.asarray([[True, False, True]]), jnp.ones(1),
    temperature=0.1,
  )  # fmt: skip
  expected = -products[0] + np.logaddexp(products[0], products[2])
  np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
  whole = _value(texts, StageObjective("ranking", 0.1, False), rows) * 3
  third = np.einsum("w,nw->n", texts[2, 0], np.asarray(texts[:, 1])) / 0.1
  np.testing.assert_allclose(
    whole, expected - third[2] + np.logaddexp(third[0], third[2]), rtol=1e-4, atol=1e-5
  )  # fmt: skip


def test_rows_of_weight_0_and_missing_negatives_change_nothing():
  random = np.random.default_rng(1)
  texts = jnp.asarray(random.normal(size=(4, 3, 4)), jnp.float32)
  short = _fields(3, 3)
  missing = short["keys"].at[2, 2].set(-1)
  expected = _value(texts[:3], StageObjective("ranking", 0.1, True), short | {"keys": missing})
  padded = jnp.concatenate([missing, jnp.full((1, 3), -1, jnp.int32)])
  weights = jnp.asarray([1.0, 1.0, 1.0, 0.0])
  fields = _fields(4, 3, keys=padded, weights=weights)
  value, gradient = jax.value_and_grad(_value)(texts, StageObjective("ranking", 0.1, True), fields)
  np.testing.assert_allclose(value, expected, **BOUND)
  assert not np.any(gradient[3]) and not np.any(gradient[2, 2]) and np.all(np.any(gradient[:2], axis=-1))


def test_cosent_by_hand():
  """Scores 3 > 1 with cosines 0.2 and 0.6 at temperature 0.1: log(1 + exp(4)); equal scores add nothing."""
  value = losses.cosent_loss(
    jnp.asarray([0.2, 0.6, 0.6]), jnp.asarray([3.0, 1.0, 1.0]), jnp.asarray([1.0, 1.0, 0.0]), temperature=0.1
  )
  np.testing.assert_allclose(value, math.log(1 + math.exp(4)), **BOUND)


def test_many_anchors_are_compared_block_by_block(monkeypatch):
  from finetune.embedding import problem

  texts = jnp.asarray(np.random.default_rng(2).normal(size=(8, 2, 4)), jnp.float32)
  compared = functools.partial(_value, objective=StageObjective("ranking", 0.1, True), fields=_fields(8, 2))
  whole = jax.value_and_grad(compared)(texts)
  monkeypatch.setattr(problem, "ANCHORS", 2)
  blocks = jax.value_and_grad(compared)(texts)
  jax.tree.map(functools.partial(np.testing.assert_allclose, **BOUND), blocks, whole)


# -- sentence-transformers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stock():
  pytest.importorskip("torch")
  return pytest.importorskip("sentence_transformers.sentence_transformer.losses")


def _compare(stock_loss, texts, ours, labels=None):
  import torch

  vectors = torch.tensor(texts, requires_grad=True)
  value = stock_loss(_module(vectors))([{"at": at} for at in range(texts.shape[1])], labels)
  value.backward()
  found, gradient = jax.value_and_grad(ours)(jnp.asarray(texts))
  np.testing.assert_allclose(found, value.item(), **BOUND)
  np.testing.assert_allclose(gradient, vectors.grad.numpy(), **BOUND)


def _module(vectors):
  import torch

  class Module(torch.nn.Module):
    similarity_fn_name = "cosine"

    def get_embedding_dimension(self):
      return vectors.shape[-1]

    def forward(self, features):
      return {"sentence_embedding": vectors[:, features["at"]]}

  return Module()


def _unit(objective, fields):
  return lambda texts: _value(unit_vectors(texts), objective, fields)


@pytest.mark.parametrize("both_ways", [False, True])
def test_ranking_equals_multiple_negatives(stock, both_ways):
  texts = np.random.default_rng(3).normal(size=(6, 2 if both_ways else 4, 8)).astype(np.float32)
  options = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
  ours = _unit(StageObjective("ranking", 0.05, both_ways), _fields(*texts.shape[:2]))
  make = functools.partial(stock.MultipleNegativesRankingLoss, scale=20.0, **(options if both_ways else {}))
  _compare(make, texts, ours)


def test_matryoshka_equals_the_stock_loss(stock):
  texts = np.random.default_rng(6).normal(size=(6, 3, 8)).astype(np.float32)

  def ours(vectors):
    objective, fields = StageObjective("ranking", 0.05, False), _fields(6, 3)
    return sum(_value(unit_vectors(vectors[..., :size]), objective, fields) for size in (8, 4, 2))

  def make(model):
    return stock.MatryoshkaLoss(model, stock.MultipleNegativesRankingLoss(model, scale=20.0), [8, 4, 2])

  _compare(make, texts, ours)


def test_cosent_equals_the_stock_loss(stock):
  import torch

  texts = np.random.default_rng(4).normal(size=(6, 2, 8)).astype(np.float32)
  scores = np.asarray([0.1, 0.9, 0.5, 0.5, 0.0, 1.0], np.float32)
  ours = _unit(StageObjective("cosent", 0.05, False), _fields(6, 2, scores=jnp.asarray(scores)))
  _compare(lambda model: stock.CoSENTLoss(model, scale=20.0), texts, ours, torch.tensor(scores))


def test_the_squared_error_of_cosines_equals_the_stock_loss(stock):
  import torch

  texts = np.random.default_rng(5).normal(size=(6, 2, 8)).astype(np.float32)
  scores = np.linspace(0, 1, 6).astype(np.float32)
  ours = _unit(StageObjective("cosine", 0.05, False), _fields(6, 2, scores=jnp.asarray(scores)))
  _compare(stock.CosineSimilarityLoss, texts, ours, torch.tensor(scores))
