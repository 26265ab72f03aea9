"""AMOS's sampling of one token from several generator heads, with its three special gradients.

Forward: mixed logits = sum_k weight_k * logits_k, one hard token by Gumbel-max, its embedding.
Backward of the embedding (AMOS section 3, equations 5-7; official AMOS_Model.forward):
  * to the token table: that of an ordinary lookup, not reversed;
  * to the sampled one-hot: times `multiplier`, then through softmax((logits + noise) / temperature)
    (straight-through) to the mixed logits, and from there to the mixture weights;
  * to the heads' logits: none, or the same gradient times `adv_mlm_multiplier` ("+ adv. MLM").
The one-hot and its gradient exist only for one chunk of positions at a time.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pretrain.ops import row_random
from pretrain.ops.platforms import platform
from pretrain.ops.vocab import added, top_ids, vocab_logits, vocab_products


class MixtureSettings(NamedTuple):
  """Static settings of `sample_from_mixture`."""

  temperature: float  # of the Gumbel softmax
  multiplier: float  # for the gradient to the one-hot; -1 reverses it
  adv_mlm_multiplier: float  # for that gradient into the heads' logits; 0 stops it
  chunk: int  # positions of a row whose vocabulary arrays may exist at once


class Noise(NamedTuple):
  """The source of Gumbel noise: the rows' keys, or given values."""

  words: jax.Array  # [batch, 2] uint32
  values: jax.Array | None = None  # [batch, positions, vocab] float32, used instead when given
  forbidden: jax.Array | None = None  # [batch, positions] int32, tokens that may not be drawn


def _chunk_noise(noise: Noise, start: jax.Array, size: int, vocab_size: int) -> jax.Array:
  if noise.values is not None:
    values = _take(noise.values, start, size, 1)
  else:
    values = row_random.row_gumbel(noise.words, (size, vocab_size), start=start)
  if noise.forbidden is None:
    return values
  is_forbidden = _take(noise.forbidden, start, size, 1)[..., None] == jnp.arange(vocab_size)
  return jnp.where(is_forbidden, -jnp.inf, values)


def mixed_logits(
  weights: jax.Array, transformed: jax.Array, table: jax.Array, biases: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns mixed logits, [batch, positions, vocab] float32, and mixed vectors [batch, positions, embed].

  sum_k w_k (t_k E^T + c_k) = (sum_k w_k t_k) E^T + c, for weights w [batch, positions, heads] float32,
  transformed t [heads, batch, positions, embed], table E [vocab, embed] and biases c [heads or 1, vocab].
  """
  mixed = jnp.einsum("bmk,kbmd->bmd", weights.astype(transformed.dtype), transformed)
  share = weights if biases.shape[0] > 1 else jnp.sum(weights, axis=-1, keepdims=True)
  return vocab_logits(mixed, table, jnp.einsum("bmk,kv->bmv", share, biases)), mixed


def relaxed_sample(scores: jax.Array, *, temperature: float) -> tuple[jax.Array, jax.Array]:
  """Returns the Gumbel softmax of scores = logits + noise in two factors, for the backward pass.

  `scores` are [..., vocab] float32. The softmax is the first result, [..., vocab], over the second, [..., 1].
  """
  scores = scores / temperature
  parts = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
  return parts, jnp.sum(parts, axis=-1, keepdims=True)


def _logits_gradient(
  scores: jax.Array, d_onehot: jax.Array, biases: jax.Array, *, temperature: float
) -> tuple[jax.Array, jax.Array]:
  """Returns the sampled one-hot's gradient as that of mixed logits and, through biases, mixture weights.

  scores and d_onehot are [batch, positions, vocab] float32, biases [heads or 1, vocab]; gives the gradients
  [batch, positions, vocab] and [batch, positions, heads or 1], float32.
  """
  parts, total = relaxed_sample(scores, temperature=temperature)
  # No sum over the vocabulary depends on another, so that a compiler computes all in one pass.
  weighed = parts * d_onehot
  mean = jnp.sum(weighed, axis=-1, keepdims=True) / total
  over_biases = functools.partial(jnp.einsum, "kv,bmv->bmk", biases.astype(jnp.float32))
  d_scores = parts * (d_onehot - mean) / (total * temperature)
  return d_scores, (over_biases(weighed) - mean * over_biases(parts)) / (total * temperature)


def _over_chunks(function, size: int, chunk: int, carry) -> tuple[Any, Any]:
  """Scans `function(carry, start, width)` over chunks; a shorter last chunk is a second call."""
  whole = size // chunk
  outputs = []
  if whole:
    carry, stacked = jax.lax.scan(lambda c, i: function(c, i * chunk, chunk), carry, jnp.arange(whole))
    outputs.append(jax.tree.map(_join_chunks, stacked))
  if size % chunk:
    carry, last = function(carry, jnp.asarray(whole * chunk), size % chunk)
    outputs.append(last)
  return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *outputs)


def _join_chunks(stacked: jax.Array) -> jax.Array:
  joined = jnp.moveaxis(stacked, 0, 1)
  return joined.reshape(joined.shape[0], -1, *joined.shape[3:])


def _take(array: jax.Array, start: jax.Array, width: int, axis: int) -> jax.Array:
  return jax.lax.dynamic_slice_in_dim(array, start, width, axis=axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def sample_from_mixture(
  weights: jax.Array,
  transformed: jax.Array,
  table: jax.Array,
  biases: jax.Array,
  noise: Noise,
  settings: MixtureSettings,
) -> tuple[jax.Array, jax.Array]:
  """Draws one token per position from the mixed logits and returns it with its embedding.

  Args:
    weights: [batch, positions, heads] float32, mixture weights.
    transformed: [heads, batch, positions, embed] float, each head's vector before the token table.
    table: [vocab, embed] float, the token table (input and output).
    biases: [heads or 1, vocab] float, output bias of each head, or the one they share.
    noise: Gumbel noise of this draw.
    settings: static numbers.

  Gives [batch, positions] int32 tokens and their [batch, positions, embed] embeddings of table's dtype.

  Source: AMOS section 3; official fairseq/models/amos/model.py (hard Gumbel softmax, gradient reversal).
  """

  def draw(carry, start, width):
    logits, _ = mixed_logits(
      _take(weights, start, width, 1), _take(transformed, start, width, 2), table, biases
    )
    scores = logits + _chunk_noise(noise, start, width, table.shape[0])
    return carry, top_ids(scores)

  _, ids = _over_chunks(draw, weights.shape[1], settings.chunk, ())
  return ids, table[ids]


def _forward(weights, transformed, table, biases, noise, settings):
  ids, embeddings = sample_from_mixture(weights, transformed, table, biases, noise, settings)
  return (ids, embeddings), (weights, transformed, table, biases, noise, ids)


def _backward(settings: MixtureSettings, residuals, cotangents):
  weights, transformed, table, biases, noise, ids = residuals
  cotangent = cotangents[1]
  if platform() == "tpu":
    # Makes the scores depend on the cotangent. Otherwise, with a single chunk, the compiler would reuse the
    # forward pass' scores and keep them through both passes of the encoder.
    weights, transformed, cotangent = jax.lax.optimization_barrier((weights, transformed, cotangent))
  adversarial_mlm = settings.adv_mlm_multiplier != 0.0

  def chunk_gradient(carry, start, width):
    d_table, d_biases = carry
    w, t = _take(weights, start, width, 1), _take(transformed, start, width, 2)
    logits, mixed = mixed_logits(w, t, table, biases)
    scores = logits + _chunk_noise(noise, start, width, table.shape[0])
    d_onehot = settings.multiplier * vocab_products(_take(cotangent, start, width, 1).astype(t.dtype), table)
    d_logits, d_share = _logits_gradient(scores, d_onehot, biases, temperature=settings.temperature)
    low = d_logits.astype(t.dtype)  # products in the heads' dtype, sums in float32
    d_mixed = jnp.einsum("bmv,vd->bmd", low, table.astype(t.dtype), preferred_element_type=jnp.float32)
    d_weights = jnp.einsum("bmd,kbmd->bmk", d_mixed, t.astype(jnp.float32)) + d_share
    if not adversarial_mlm:
      return carry, (d_weights, ())
    scale = settings.adv_mlm_multiplier
    d_transformed = scale * jnp.einsum("bmk,bmd->bmkd", w, d_mixed)
    into_table = jnp.einsum("bmv,bmd->vd", low, mixed, preferred_element_type=jnp.float32)
    d_table = d_table + scale * into_table
    share = w if biases.shape[0] > 1 else jnp.sum(w, axis=-1, keepdims=True)
    d_biases = d_biases + scale * jnp.einsum("bmk,bmv->kv", share, d_logits)
    return (d_table, d_biases), (d_weights, d_transformed)

  carry = (jnp.zeros(table.shape, jnp.float32), jnp.zeros(biases.shape, jnp.float32))
  carry = carry if adversarial_mlm else ((), ())
  (d_table, d_biases), (d_weights, d_transformed) = _over_chunks(
    chunk_gradient, weights.shape[1], settings.chunk, carry
  )
  looked_up = added(jnp.zeros(table.shape, jnp.float32), ids, cotangent.astype(jnp.float32))
  if not adversarial_mlm:
    return d_weights.astype(weights.dtype), None, looked_up.astype(table.dtype), None, None
  return (
    d_weights.astype(weights.dtype),
    jnp.moveaxis(d_transformed, 2, 0).astype(transformed.dtype),
    (looked_up + d_table).astype(table.dtype),
    d_biases.astype(biases.dtype),
    None,
  )


sample_from_mixture.defvjp(_forward, _backward)
