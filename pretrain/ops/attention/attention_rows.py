"""Attention one row at a time: scores fit the CPU's cache, and the backward pass recomputes them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops.attention import attention_bands
from pretrain.ops.draws import row_random

LONGEST = 1_024  # tokens of a row whose scores are computed at once
_BLOCK = 256  # queries of a longer row that are


class _Row(NamedTuple):
  """Inputs of attention for a batch, [batch, ...], or for one row."""

  query: jax.Array  # [length, heads, head_dim], scaled
  key: jax.Array
  value: jax.Array
  allowed: jax.Array  # [length or 1, length] bool of (query, key)
  words: jax.Array | None  # [2] uint32 of the row's dropout


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None,
  allowed: jax.Array,
  dropout_rate: float,
  row_keys: jax.Array | None,
) -> jax.Array:
  """Computes `ops.attention.attention` with a square bias; `allowed` is [batch, length or 1, length] bool."""
  words = None
  if dropout_rate:
    assert row_keys is not None
    words = row_random.key_words(row_random.fold(row_keys, row_random.Use.ATTENTION_DROPOUT))
  query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  return _by_rows(dropout_rate, (query, key, value), bias, (allowed, words))


def in_blocks(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  key_mask: jax.Array,
  segment_ids: jax.Array | None,
  window: int | None,
) -> jax.Array:
  """Computes `ops.attention.attention` of long rows without bias and dropout, a block of queries at a time.

  No more than the scores of 256 queries exist at once; the backward pass computes them again.
  """
  length = query.shape[1]
  segments = jnp.zeros(key_mask.shape, jnp.int32) if segment_ids is None else segment_ids
  query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  queries, own = attention_bands.blocks(query, _BLOCK), attention_bands.blocks(segments, _BLOCK)
  places = jnp.arange(own.shape[1] * _BLOCK).reshape(-1, _BLOCK)

  def of_row(row: tuple) -> jax.Array:
    queries, own, key, value, real, segments = row

    @jax.checkpoint
    def of_block(block: tuple) -> jax.Array:
      query, own, at = block
      allowed = real & (own[:, None] == segments)
      if window is not None:
        allowed &= jnp.abs(at[:, None] - jnp.arange(length)) <= window
      probabilities, _ = _probabilities(0.0, _Row(query, key, value, allowed, None), None)
      return jnp.einsum("hqk,khd->qhd", probabilities.astype(value.dtype), value)

    return jax.lax.map(of_block, (queries, own, places)).reshape(-1, *key.shape[1:])[:length]

  return jax.lax.map(of_row, (queries, own, key, value, key_mask, segments))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_rows(rate: float, wide: tuple, bias: jax.Array | None, fixed: tuple) -> jax.Array:
  return _forward(rate, wide, bias, fixed)[0]


def _forward(rate: float, wide: tuple, bias: jax.Array | None, fixed: tuple) -> tuple:
  def attended(row: _Row) -> jax.Array:
    probabilities, kept = _probabilities(rate, row, bias)
    dropped = _dropped(rate, probabilities, kept).astype(row.value.dtype)
    return jnp.einsum("hqk,khd->qhd", dropped, row.value)

  return jax.lax.map(attended, _Row(*wide, *fixed)), (wide, bias, fixed)


def _backward(rate: float, saved: tuple, d_output: jax.Array) -> tuple:
  wide, bias, fixed = saved

  def add_row(d_bias, of_row):
    row, d_output = of_row
    probabilities, kept = _probabilities(rate, row, bias)
    d_probabilities = jnp.einsum("qhd,khd->hqk", d_output, row.value, preferred_element_type=jnp.float32)
    d_probabilities = _dropped(rate, d_probabilities, kept)
    mean = jnp.sum(probabilities * d_probabilities, axis=-1, keepdims=True)
    d_scores = jnp.where(row.allowed, probabilities * (d_probabilities - mean), 0.0)
    dropped = _dropped(rate, probabilities, kept).astype(row.value.dtype)
    d_value = jnp.einsum("hqk,qhd->khd", dropped, d_output)
    d_bias = None if d_bias is None else d_bias + d_scores
    d_scores = d_scores.astype(row.query.dtype)
    d_key = jnp.einsum("hqk,qhd->khd", d_scores, row.query)
    return d_bias, (jnp.einsum("hqk,khd->qhd", d_scores, row.key), d_key, d_value)

  nothing = None if bias is None else jnp.zeros_like(bias)
  d_bias, d_wide = jax.lax.scan(add_row, nothing, (_Row(*wide, *fixed), d_output))
  return d_wide, d_bias, None


_by_rows.defvjp(_forward, _backward)


def _probabilities(rate: float, row: _Row, bias: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
  """Returns a row's probabilities [heads, query, key] float32, and dropout's mask of kept ones, or None."""
  scores = jnp.einsum("qhd,khd->hqk", row.query, row.key, preferred_element_type=jnp.float32)
  if bias is not None:
    scores = scores + bias
  scores = jnp.where(row.allowed, scores, np.finfo(np.float32).min)
  kept = None
  if row.words is not None:
    kept = row_random.row_kept_of_heads(row.words[None], scores.shape, rate=rate)[0]
  return jax.nn.softmax(scores, axis=-1), kept


def _dropped(rate: float, x: jax.Array, kept: jax.Array | None) -> jax.Array:
  return x if kept is None else jnp.where(kept, x / (1.0 - rate), 0.0)
