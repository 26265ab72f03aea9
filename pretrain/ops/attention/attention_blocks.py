"""Attention by plain operations on parts of the scores: one row, a block of queries, a band, or some queries.

By rows, scores fit the CPU's cache, and the backward pass recomputes them. In bands, local attention of long
rows becomes attention of short ones: blocks of queries, each with the keys near it. Some queries are enough
for the last layer if few of its positions are read.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import row_random
from pretrain.ops.platforms import platform
from pretrain.ops.row_random import Part, Use

LONGEST = 1_024  # tokens of a row whose scores are computed at once
_QUERIES_OF_ROW = 256  # queries of a longer row that are


class _Row(NamedTuple):
  """Inputs of attention for a batch, [batch, ...], or for one row."""

  query: jax.Array  # [length, heads, head_dim], scaled
  key: jax.Array
  value: jax.Array
  allowed: jax.Array  # [length or 1, length] bool of (query, key)
  words: jax.Array | None  # [2] uint32 of the row's dropout


def attention_by_rows(
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
  queries, own = blocks(query, _QUERIES_OF_ROW), blocks(segments, _QUERIES_OF_ROW)
  places = jnp.arange(own.shape[1] * _QUERIES_OF_ROW).reshape(-1, _QUERIES_OF_ROW)

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


_SMALLEST = 64  # queries of a block


def _band(window: int) -> int:
  return max(_SMALLEST, window)


def bands_save(length: int, window: int | None) -> bool:
  """Returns whether blocks of queries read clearly fewer keys than a row of `length` tokens has."""
  return window is not None and length > 4 * _band(window)


def blocks(x: jax.Array, size: int) -> jax.Array:
  """Pads [batch, length, ...] and cuts it into [batch, blocks, size, ...]."""
  number = -(-x.shape[1] // size)
  padding = [(0, 0), (0, number * size - x.shape[1]), *[(0, 0)] * (x.ndim - 2)]
  return jnp.reshape(jnp.pad(x, padding), (x.shape[0], number, size, *x.shape[2:]))


def _of_queries(x: jax.Array, size: int) -> jax.Array:
  """Returns [batch * blocks, size, ...], the blocks of [batch, length, ...]."""
  return jnp.reshape(blocks(x, size), (-1, size, *x.shape[2:]))


def _of_keys(x: jax.Array, size: int) -> jax.Array:
  """Returns [batch * blocks, 3 size, ...]: each block of [batch, length, ...] between its neighbours."""
  own = jnp.pad(blocks(x, size), [(0, 0), (1, 1), *[(0, 0)] * (x.ndim - 1)])
  three = jnp.concatenate([own[:, :-2], own[:, 1:-1], own[:, 2:]], axis=2)
  return jnp.reshape(three, (-1, 3 * size, *x.shape[2:]))


def cut_into_bands(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  key_mask: jax.Array,
  segment_ids: jax.Array | None,
  window: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Returns blocks of queries, keys and values as rows, and [rows, queries, keys] bool of the keys to read.

  Arguments are those of `ops.attention.attention`; `joined` inverts the cut. A block of s queries, the window
  or more, has 3 s keys. A query without a key to read averages over these instead of over its row.
  """
  size = _band(window)
  near = np.abs(np.arange(3 * size)[None, :] - size - np.arange(size)[:, None]) <= window
  allowed = _of_keys(key_mask, size)[:, None, :] & near
  if segment_ids is not None:
    allowed &= _of_queries(segment_ids, size)[:, :, None] == _of_keys(segment_ids, size)[:, None, :]
  return _of_queries(query, size), _of_keys(key, size), _of_keys(value, size), allowed


def joined_bands(parts: jax.Array, length: int) -> jax.Array:
  """Returns blocks [batch * blocks, size, ...] as rows of `length` tokens, [batch, length, ...]."""
  number = -(-length // parts.shape[1])
  return jnp.reshape(parts, (-1, number * parts.shape[1], *parts.shape[2:]))[:, :length]


_QUERIES = 256  # queries whose scores in a long row are computed at once


def attention_at(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  positions: jax.Array,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  segment_ids: jax.Array | None = None,
  window: int | None = None,
  dropout_rate: float = 0.0,
  row_keys: jax.Array | None = None,
) -> jax.Array:
  """Computes attention for the queries at some positions only, with the dropout of full attention.

  Args:
    query: [batch, queries, heads, head_dim] float, at the positions.
    key, value: [batch, length, heads, head_dim] float.
    positions: [batch, queries] int32, within the row.
    bias: [heads, length, length], or [heads, 2 length - 1] by key - query + length - 1, or None.
    key_mask: [batch, length] bool, True where a key may be read.
    segment_ids: [batch, length] int32: only keys of the query's own segment are read; None: of all.
    window: only keys at most so many tokens before or after the query are read; None: at any distance.
    dropout_rate: share of the probabilities set to 0.
    row_keys: [batch] keys; None: no dropout.

  Returns:
    [batch, queries, heads, head_dim] in value's dtype; scores and softmax are float32.

  Of long rows without bias and dropout no more than the scores of 256 queries exist at once.
  """
  length = key.shape[1]
  masks = {"key_mask": key_mask, "segment_ids": segment_ids, "window": window}
  if (
    length > LONGEST and query.shape[1] > _QUERIES and bias is None and (row_keys is None or not dropout_rate)
  ):

    @jax.checkpoint
    def of_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
      return attention_at(block[0], key, value, block[1], bias=None, **masks)

    parts = (jnp.moveaxis(blocks(x, _QUERIES), 1, 0) for x in (query, positions))
    attended = jnp.moveaxis(jax.lax.map(of_block, tuple(parts)), 0, 1)
    return jnp.reshape(attended, (query.shape[0], -1, *query.shape[2:]))[:, : query.shape[1]]
  query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
  if bias is not None:
    if bias.ndim == 2:
      bias = (_summed_square if platform() == "gpu" else _square)(bias)
    scores = scores + _bias_of_queries(bias.astype(jnp.float32), positions)
  allowed = key_mask[:, None, :]
  if segment_ids is not None:
    own = jnp.take_along_axis(segment_ids, positions, axis=1)
    allowed = allowed & (own[:, :, None] == segment_ids[:, None, :])
  if window is not None:
    allowed = allowed & (jnp.abs(jnp.arange(length) - positions[..., None]) <= window)
  scores = jnp.where(allowed[:, None], scores, jnp.finfo(jnp.float32).min)
  probabilities = jax.nn.softmax(scores, axis=-1)
  probabilities = row_random.dropout(
    probabilities, row_keys, Use.ATTENTION_DROPOUT, rate=dropout_rate, part=Part(positions, 1, length)
  )
  return jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(value.dtype), value)


def _square(bias: jax.Array) -> jax.Array:
  """Expands a bias [heads, 2 length - 1] by key - query + length - 1 to [heads, length, length]."""
  length = (bias.shape[1] + 1) // 2
  return bias[:, np.arange(length)[None, :] - np.arange(length)[:, None] + length - 1]


# Its gradient sums over diagonals; a lookup's own is a scatter, which GPUs add up in varying order.
_summed_square = jax.custom_vjp(_square)


def _square_backward(_, cotangent: jax.Array):
  heads, length, _ = cotangent.shape
  # Padded to rows of 2 length, last query first, and read as rows of 2 length - 1, diagonals are columns.
  wide = jnp.pad(jnp.flip(cotangent, 1), ((0, 0), (0, 0), (0, length))).reshape(heads, -1)
  return (jnp.sum(wide[:, :-length].reshape(heads, length, 2 * length - 1), axis=1),)


_summed_square.defvjp(lambda bias: (_square(bias), None), _square_backward)


@jax.custom_vjp
def _bias_of_queries(bias: jax.Array, positions: jax.Array) -> jax.Array:
  """Looks up a bias [heads, length, length] at positions: [batch, heads, queries, length].

  Its gradient is a product, because accelerators compute a lookup's own, a scatter, one element at a time.
  """
  return jnp.moveaxis(jnp.take(bias, positions, axis=1), 0, 1)


def _bias_forward(bias: jax.Array, positions: jax.Array):
  return _bias_of_queries(bias, positions), positions


def _bias_backward(positions: jax.Array, cotangent: jax.Array):
  is_query = jax.nn.one_hot(positions, cotangent.shape[-1], dtype=cotangent.dtype)
  return jnp.einsum("bnq,bhnk->hqk", is_query, cotangent), None


_bias_of_queries.defvjp(_bias_forward, _bias_backward)
