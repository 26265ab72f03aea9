"""Rotary position embedding: pairs of a head's components turn by an angle that grows with the position."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.mesh.sharding import HEAD_AXIS, automatic_axes
from pretrain.ops.platforms import platform

_LANES = 128  # of a register of a TPU


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


def rotate(x: jax.Array, positions: jax.Array | None, *, length: int, theta: float) -> jax.Array:
  """Rotates queries or keys [batch, tokens, heads, head_dim] by their positions, in float32; same dtype.

  Args:
    positions: [batch, tokens] int32 below `length`; None: 0, 1, ... in every row.
    length: rows of the tables.
    theta: base of the frequencies.

  The first half of a head turns with its second half, as in GPT-NeoX and ModernBERT.
  """
  head_dim = x.shape[-1]
  fits = x.shape[2] * head_dim % _LANES == 0 and _LANES % head_dim == 0
  by_lanes = platform() == "tpu" and fits and automatic_axes().get(HEAD_AXIS, 1) == 1
  turns = tables(length, head_dim, theta)
  if by_lanes:
    repeats = 2 * _LANES // head_dim
    turns = np.tile(turns[0], repeats), np.tile(np.concatenate([-turns[1], turns[1]], axis=1), repeats // 2)
  cosines, sines = (jnp.asarray(table) for table in turns)
  if positions is None:
    cosines, sines = cosines[: x.shape[1]], sines[: x.shape[1]]
  else:
    cosines, sines = jnp.take(cosines, positions, axis=0), jnp.take(sines, positions, axis=0)
  if by_lanes:
    return rotate_lanes(x, cosines, sines)
  cosines, sines = cosines[..., None, :], sines[..., None, :]
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = first * cosines - second * sines, second * cosines + first * sines
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


@jax.custom_vjp
def rotate_lanes(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
  """Rotates as `rotate` on a TPU, by tables [batch or none, tokens, 128] of the lanes of its registers.

  There an array [..., heads, 64] takes twice its memory, and half a head is costly to cut out. So 128 lanes
  stay together, and a product with a permutation exchanges the halves of their heads, exactly. The sines of
  first halves are negative.
  """
  head_dim, at, wide = x.shape[-1], np.arange(_LANES), jnp.reshape(x, (*x.shape[:2], -1))
  exchanged = at[:, None] == at // head_dim * head_dim + (at + head_dim // 2) % head_dim
  precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
  turned = []
  for lanes in jnp.split(wide, wide.shape[-1] // _LANES, axis=-1):  # an axis of 6 would be padded to 8
    other = jnp.einsum(
      "...i,ij->...j",
      lanes,
      jnp.asarray(exchanged, x.dtype),
      precision=precision,
      preferred_element_type=jnp.float32,
    )
    turned.append((lanes.astype(jnp.float32) * cosines + other * sines).astype(x.dtype))
  return jnp.reshape(jnp.concatenate(turned, axis=-1), x.shape)


def _forward(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> tuple[jax.Array, tuple]:
  return rotate_lanes(x, cosines, sines), (cosines, sines)


def _backward(tables: tuple, given: jax.Array) -> tuple:
  cosines, sines = tables
  return rotate_lanes(given, cosines, -sines), None, None


rotate_lanes.defvjp(_forward, _backward)
