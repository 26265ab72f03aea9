"""Attention for a few queries of each row, for the last layer if few of its positions are read."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops.attention.attention import platform
from pretrain.ops.attention.attention_bands import blocks
from pretrain.ops.attention.attention_rows import LONGEST
from pretrain.ops.draws import row_random
from pretrain.ops.draws.row_random import Part, Use

_BLOCK = 256  # queries whose scores in a long row are computed at once


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
  if length > LONGEST and query.shape[1] > _BLOCK and bias is None and (row_keys is None or not dropout_rate):

    @jax.checkpoint
    def of_block(block: tuple[jax.Array, jax.Array]) -> jax.Array:
      return attention_at(block[0], key, value, block[1], bias=None, **masks)

    parts = (jnp.moveaxis(blocks(x, _BLOCK), 1, 0) for x in (query, positions))
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
