"""Losses of vectors of texts: arrays in, sums out, all in float32."""

import jax
import jax.numpy as jnp

from pretrain.losses import unit_vectors

_HIGHEST = jax.lax.Precision.HIGHEST


def ranking_loss(
  anchors: jax.Array,
  candidates: jax.Array,
  positives: jax.Array,
  may_compete: jax.Array,
  weights: jax.Array,
  *,
  temperature: float,
) -> tuple[jax.Array, jax.Array]:
  """Returns -log softmax(product / temperature) of each anchor's positive, and the hits, both summed.

  Args:
    anchors: [n, width] float vectors, of unit length for cosines.
    candidates: [m, width] float vectors.
    positives: [n] int32, the index of each anchor's positive among the candidates.
    may_compete: [n, m] bool, which candidates are negatives of an anchor; its positive always takes part.
    weights: [n] float, 0 for anchors that do not count.

  A hit is an anchor whose positive has the largest product. Source: multiple-negatives ranking (Henderson et
  al. 2017, section 4; sentence-transformers' MultipleNegativesRankingLoss).
  """
  products = jnp.einsum("nw,mw->nm", anchors, candidates, precision=_HIGHEST) / temperature
  is_positive = positives[:, None] == jnp.arange(candidates.shape[0])
  scores = jnp.where(may_compete | is_positive, products, -jnp.inf)
  log_probs = jnp.take_along_axis(jax.nn.log_softmax(scores, axis=-1), positives[:, None], axis=-1)[:, 0]
  hits = jnp.argmax(jax.lax.stop_gradient(scores), axis=-1) == positives
  return -jnp.sum(log_probs * weights), jnp.sum(hits * weights)


def cosent_loss(
  cosines: jax.Array, scores: jax.Array, weights: jax.Array, *, temperature: float
) -> jax.Array:
  """Returns log(1 + sum of exp((cosine_j - cosine_i) / temperature) over pairs with score_i > score_j), [].

  `cosines`, `scores` and `weights` are [n] float; pairs of weight 0 do not count. The loss is one number for
  the whole batch. Source: CoSENT (Su 2022); sentence-transformers' CoSENTLoss, whose `scale` is the inverse
  of `temperature`.
  """
  differences = (cosines[None, :] - cosines[:, None]) / temperature
  counts = (scores[:, None] > scores[None, :]) & (weights[:, None] * weights[None, :] > 0)
  terms = jnp.where(counts, differences, -jnp.inf).reshape(-1)
  return jax.nn.logsumexp(jnp.concatenate([jnp.zeros(1), terms]))


def cosine_error(cosines: jax.Array, scores: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the sum of squared differences of cosines and scores, each [n] float, times `weights`.

  Source: Sentence-BERT (Reimers and Gurevych 2019) section 3, regression objective.
  """
  return jnp.sum(jnp.square(cosines - scores) * weights)


def cosines_of(first: jax.Array, second: jax.Array) -> jax.Array:
  """Returns the cosine of each vector of `first` [n, width] with its partner in `second`, [n] float32."""
  return jnp.sum(unit_vectors(first) * unit_vectors(second), axis=-1)
