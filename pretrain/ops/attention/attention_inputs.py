"""Inputs that attention kernels for all platforms share."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NO_GROUP = np.iinfo(
  np.int32
).min  # of masked keys, in kernels where a key is read if its group is the query's


class Settings(NamedTuple):
  """Static settings of an attention kernel."""

  kernels: str  # 'pallas_tpu' or 'triton'
  head_dim: int
  dropout_rate: float
  window: int | None
  interpret: bool


class Fixed(NamedTuple):
  """Inputs of attention without a gradient: key masks, segments, words of random keys, rotations."""

  key_mask: jax.Array  # [batch, length] bool
  segment_ids: jax.Array | None  # [batch, length] int32
  words: jax.Array | None  # [batch, 2] uint32
  turns: jax.Array | None = None  # [batch, length, head_dim] float32, `rope.turns`; None: nothing is rotated


def tiles_read(
  of_keys: jax.Array, window: int | None, *, block: int, tile: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the first tile of keys that each block of queries reads, and one after the last, [rows, blocks].

  A tile is read if its groups, from the least to the greatest, overlap those of the block, and if it is
  within the window. Masked tokens do not count as queries: what they read is discarded.

  Args:
    of_keys: [rows, length] int32 groups of keys, a multiple of both sizes long.
    window: as `ops.attention.attention` takes it.
    block, tile: sizes, in tokens.
  """
  (least, most), (from_least, to_most) = (_bounds(of_keys, size) for size in (block, tile))
  is_read = (least[:, :, None] <= to_most[:, None, :]) & (most[:, :, None] >= from_least[:, None, :])
  if window is not None:
    blocks, tiles = np.arange(0, of_keys.shape[1], block)[:, None], np.arange(0, of_keys.shape[1], tile)
    is_read &= np.maximum(tiles - (blocks + block - 1), blocks - (tiles + tile - 1)) <= window
  last = is_read.shape[-1] - jnp.argmax(is_read[..., ::-1], axis=-1)
  end = jnp.where(jnp.any(is_read, axis=-1), last, 1)  # without keys any average will do
  return jnp.argmax(is_read, axis=-1).astype(jnp.int32), end.astype(jnp.int32)


def _bounds(groups: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """Returns the least and greatest group of the keys in each part of `size` tokens, [rows, parts] each."""
  parts = jnp.reshape(groups, (groups.shape[0], -1, size))
  least = jnp.where(parts == NO_GROUP, np.iinfo(np.int32).max, parts)
  return jnp.min(least, axis=-1), jnp.max(parts, axis=-1)
