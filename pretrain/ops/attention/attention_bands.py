"""Local attention of long rows as attention of short ones: blocks of queries, each with the keys near it."""

import jax
import jax.numpy as jnp
import numpy as np

_SMALLEST = 64  # queries of a block


def _size(window: int) -> int:
  return max(_SMALLEST, window)


def saves(length: int, window: int | None) -> bool:
  """Returns whether blocks of queries read clearly fewer keys than a row of `length` tokens has."""
  return window is not None and length > 4 * _size(window)


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


def cut(
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
  size = _size(window)
  near = np.abs(np.arange(3 * size)[None, :] - size - np.arange(size)[:, None]) <= window
  allowed = _of_keys(key_mask, size)[:, None, :] & near
  if segment_ids is not None:
    allowed &= _of_queries(segment_ids, size)[:, :, None] == _of_keys(segment_ids, size)[:, None, :]
  return _of_queries(query, size), _of_keys(key, size), _of_keys(value, size), allowed


def joined(parts: jax.Array, length: int) -> jax.Array:
  """Returns blocks [batch * blocks, size, ...] as rows of `length` tokens, [batch, length, ...]."""
  number = -(-length // parts.shape[1])
  return jnp.reshape(parts, (-1, number * parts.shape[1], *parts.shape[2:]))[:, :length]
