"""Rotary position embedding: pairs of a head's components turn by an angle that grows with the position."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.lru_cache(maxsize=16)
def tables(length: int, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns cosines and sines of every position and pair, [length, head_dim // 2] float32 each.

  The frequencies have the bits of PyTorch's, as long rows need: rounded otherwise they give angles off by
  2e-4 at position 8,000. For the same reason the tables are constants of the program, not left to a device.
  Source: transformers 5.23, modeling_rope_utils.py.
  """
  exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
  powers = np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)
  frequencies = np.float32(1.0) / powers
  angles = np.arange(length, dtype=np.float32)[:, None] * frequencies[None, :]
  return np.cos(angles), np.sin(angles)


def turns(positions: jax.Array | None, *, length: int, head_dim: int, theta: float) -> jax.Array:
  """Returns the rotation of every token, [batch or 1, tokens, head_dim] float32: cosines, then sines.

  Args:
    positions: [batch, tokens] int32 below `length`; None: 0 to `length` - 1, in every row.
    length: rows of the tables.
    theta: base of the frequencies.
  """
  table = jnp.asarray(np.concatenate(tables(length, head_dim, theta), axis=1))
  return table[None] if positions is None else jnp.take(table, positions, axis=0)


def rotate(x: jax.Array, turns: jax.Array) -> jax.Array:
  """Rotates queries or keys [batch, tokens, heads, head_dim] by `turns`, in float32; same dtype.

  The first half of a head turns with its second half, as in GPT-NeoX and ModernBERT.
  """
  cosines, sines = jnp.split(turns[:, :, None, :], 2, axis=-1)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = first * cosines - second * sines, second * cosines + first * sines
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def rotate_packed(packed: jax.Array, turns: jax.Array) -> jax.Array:
  """Rotates queries and keys of [batch, tokens, 3, heads, head_dim], whose last third are values."""
  rows, tokens, _, heads, head_dim = packed.shape
  turned = rotate(jnp.reshape(packed[:, :, :2], (rows, tokens, 2 * heads, head_dim)), turns)
  turned = jnp.reshape(turned, (rows, tokens, 2, heads, head_dim))
  return jnp.concatenate([turned, packed[:, :, 2:]], axis=2)
