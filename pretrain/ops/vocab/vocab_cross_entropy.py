"""Log-probabilities over the vocabulary at gathered positions, without storing the logits.

At most `chunk` positions of each row have logits at any time; with more than one chunk the backward pass
recomputes them. [batch, length, vocab] never exists.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp


class VocabScores(NamedTuple):
  """Log-probabilities of target tokens, and the most probable token, of a softmax over the vocabulary."""

  log_probs: jax.Array  # [batch, positions, targets] float32, nats; differentiable
  top_ids: jax.Array  # [batch, positions] int32, the most probable token
  top_log_probs: jax.Array  # [batch, positions] float32, its log-probability; no gradient


def vocab_logits(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
  """Computes the scores of every token, x . table^T + bias: [..., vocab] float32.

  x is [..., embed], table [vocab, embed], bias [vocab] or [..., vocab]; the products run in x's dtype.
  """
  return vocab_products(x, table) + bias.astype(jnp.float32)


def vocab_products(x: jax.Array, table: jax.Array) -> jax.Array:
  """Computes x . table^T in x's dtype, [..., vocab] float32, for x [..., embed] and table [vocab, embed]."""
  return jnp.einsum("...d,vd->...v", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


def top_ids(scores: jax.Array) -> jax.Array:
  """Returns the token with the largest score, the first of equal ones: [...] int32 from [..., vocab] float.

  It is argmax as two plain reductions, because XLA's argmax of pairs takes five times as long on a CPU. Ids
  are compared as float32, exact below 2^24, because the TPU compiler joins reductions of one dtype, which
  saves one pass over the scores. Scores with a NaN give the last token.
  """
  last = scores.shape[-1] - 1
  is_top = scores == jnp.max(scores, axis=-1, keepdims=True)
  ids = jnp.where(is_top, jnp.arange(last + 1, dtype=jnp.float32), float(last))
  return jnp.min(ids, axis=-1).astype(jnp.int32)


def _scores(x: jax.Array, table: jax.Array, bias: jax.Array, targets: jax.Array) -> VocabScores:
  logits = vocab_logits(x, table, bias)
  log_total = jax.nn.logsumexp(logits, axis=-1)
  log_probs = jnp.take_along_axis(logits, targets, axis=-1) - log_total[..., None]
  fixed = jax.lax.stop_gradient(logits)
  top_log_probs = jnp.max(fixed, axis=-1) - jax.lax.stop_gradient(log_total)
  return VocabScores(log_probs, top_ids(fixed), top_log_probs)


def vocab_scores(
  x: jax.Array, table: jax.Array, bias: jax.Array, targets: jax.Array, *, chunk: int
) -> VocabScores:
  """Scores a few target tokens at each position under softmax(x . table^T + bias).

  Args:
    x: [batch, positions, embed] float.
    table: [vocab, embed] float; gets the gradient of an output softmax.
    bias: [vocab] float.
    targets: [batch, positions, targets] int32 token ids.
    chunk: most positions of a row whose logits may exist at once; at least 1.
  """
  num_positions = x.shape[1]
  if num_positions <= chunk:
    return _scores(x, table, bias, targets)
  over_chunks = functools.partial(over_position_chunks, chunk=chunk)
  return over_chunks(lambda x, targets: _scores(x, table, bias, targets), x, targets)


def over_position_chunks(function, *arrays: jax.Array, chunk: int):
  """Applies `function` to chunks of positions one after another, recomputing in the backward pass.

  `function` takes arrays [batch, <= chunk, ...], parts of `arrays` [batch, positions, ...] padded with zeros,
  and returns a pytree of such arrays; the result has them joined over all positions.
  """
  num_positions = arrays[0].shape[1]
  num_chunks = -(-num_positions // chunk)
  chunk = -(-num_positions // num_chunks)  # equal chunks: as little padding as possible
  padding = num_chunks * chunk - num_positions

  def split(array: jax.Array) -> jax.Array:
    array = jnp.pad(array, [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2))
    array = array.reshape(array.shape[0], num_chunks, chunk, *array.shape[2:])
    return jnp.moveaxis(array, 1, 0)

  def join(array: jax.Array) -> jax.Array:
    array = jnp.moveaxis(array, 0, 1)
    return array.reshape(array.shape[0], num_chunks * chunk, *array.shape[3:])[:, :num_positions]

  results = jax.lax.map(lambda parts: jax.checkpoint(function)(*parts), tuple(split(a) for a in arrays))
  return jax.tree.map(join, results)
