"""Losses of vectors: values and gradients of their definitions in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune.embedding import losses, problem
from finetune.embedding.problem import StageObjective, _loss
from tests.finetune.embedding import small

# Rows 0 and 1 have one positive, rows 1 and 2 one query; row 3 has one negative less; row 4 is padding. The
# second negative of row 0 is the positive of row 2.
KEYS = np.asarray([[0, 9, 20, 5], [1, 9, 21, 22], [1, 5, 23, 24], [3, 6, 25, -1], [-1, -1, -1, -1]], np.int32)
WEIGHTS = np.asarray([1, 1, 1, 1, 0], np.float32)
SCORES = np.asarray([0.1, 0.9, 0.5, 0.5, 0.0], np.float32)
# (objective, sides). A cosine has no temperature.
CASES = [
  (StageObjective("ranking", 0.5, False), 4),
  (StageObjective("ranking", 0.7, True), 4),
  (StageObjective("cosent", 0.3, False), 2),
  (StageObjective("cosine", 0.3, False), 2),
]


def _ours(texts, objective, *, keys=KEYS, weights=WEIGHTS, scores=SCORES):
  fields = {"keys": jnp.asarray(keys), "weights": jnp.asarray(weights), "scores": jnp.asarray(scores)}
  return _loss(texts, fields, objective, device=0, devices=1)


def _differences(function, texts: np.ndarray, step: float = 1e-5) -> np.ndarray:
  """The gradient by central differences."""
  made = np.zeros_like(texts)
  for at in np.ndindex(texts.shape):
    sides = [texts.copy(), texts.copy()]
    for side, sign in zip(sides, (1, -1)):
      side[at] += sign * step
    made[at] = (function(sides[0]) - function(sides[1])) / (2 * step)
  return made


@pytest.mark.parametrize(("objective", "sides"), CASES, ids=lambda case: str(getattr(case, "kind", case)))
def test_values_and_gradients_are_those_of_the_definition(objective, sides):
  texts, keys = np.random.default_rng(1).normal(size=(5, sides, 3)), KEYS[:, :sides]

  def expected(vectors):
    return small.loss(vectors, keys, WEIGHTS, SCORES, objective)

  def ours(vectors):
    return _ours(vectors, objective, keys=keys)

  (value, metrics), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(
    jnp.asarray(texts, jnp.float32)
  )
  total, hits = expected(texts)
  np.testing.assert_allclose(value, total, rtol=1e-5)
  found = {name: tuple(map(float, pair)) for name, pair in metrics.items()}
  accuracy = {"accuracy": (hits, 4.0)} if objective.kind == "ranking" else {}
  assert found == {"task_loss": (pytest.approx(total, rel=1e-5), 4.0), **accuracy} and 0 <= hits < 4
  slopes = _differences(lambda vectors: expected(vectors)[0], texts)
  np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-5)
  assert not np.any(gradient[4]) and (sides == 2 or not np.any(gradient[3, 3]))
  assert np.all(np.any(gradient[:4, :2], axis=-1))


def test_a_row_whose_only_rivals_are_known_answers_costs_exactly_nothing():
  """Of rows 0 to 2 row 1 shares its positive with one and its query with the other."""
  texts = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4)), jnp.float32)
  for both_ways in (False, True):
    given = {"keys": KEYS[:3, :2], "weights": np.float32([0, 1, 0]), "scores": SCORES[:3]}
    loss = functools.partial(_ours, objective=StageObjective("ranking", 0.1, both_ways), **given)
    (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(texts)
    assert value == 0 and not np.any(gradient)
  cosent = losses.cosent_loss(
    *map(jnp.asarray, ([0.2, 0.6, 0.6], [3.0, 1.0, 1.0], [1.0, 1, 0])), temperature=0.1
  )
  np.testing.assert_allclose(cosent, math.log(1 + math.exp(4)), rtol=1e-6)


def test_many_anchors_are_compared_block_by_block(monkeypatch):
  texts, rows = jnp.asarray(np.random.default_rng(2).normal(size=(8, 2, 4)), jnp.float32), np.arange(16)
  given = {"keys": rows.reshape(8, 2), "weights": np.ones(8, np.float32), "scores": np.zeros(8, np.float32)}
  compared = functools.partial(_ours, objective=StageObjective("ranking", 0.1, True), **given)
  whole = jax.value_and_grad(compared, has_aux=True)(texts)
  monkeypatch.setattr(problem, "ANCHORS", 2)
  assert "scan" in str(jax.make_jaxpr(compared)(texts))
  blocks = jax.value_and_grad(compared, has_aux=True)(texts)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), blocks, whole)
