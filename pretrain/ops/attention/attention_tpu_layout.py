"""Sizes of arrays in TPU attention kernels, and the layout of a group's heads in a tile.

The heads share the 128 lanes of a register. Their queries are stacked, with the lanes of other heads set to
0, so that one product computes the scores of all heads side by side.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

TILE = 128  # queries of a tile; lengths are padded to multiples of it. The lanes of a register
SUBLANES = 8  # copies of the bias vector, each shifted by one more; the sublanes of a register
MASKED = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes that a kernel is compiled for."""

  rows: int
  length: int  # tokens of a row
  heads: int  # on this device
  head_dim: int
  dropout_rate: float
  window: int | None

  @property
  def padded(self) -> int:
    """Tokens of a row in memory, a multiple of the tile."""
    return -(-self.length // TILE) * TILE

  @property
  def tiles(self) -> int:
    """Number of tiles in a row."""
    return self.padded // TILE

  @property
  def at_once(self) -> int:
    """Rows of a grid step; short rows share one, so that one computes while another waits."""
    return math.gcd(self.rows, max(1, 8 // self.tiles**2))  # 8 pieces of 128 queries and 128 keys

  @property
  def group(self) -> int:
    """Heads of a grid step: as many as fill 128 lanes, or all if they cannot."""
    fill = max(1, TILE // self.head_dim)
    fits = self.head_dim * fill % TILE == 0 and self.heads % fill == 0
    return fill if fits else self.heads

  @property
  def groups(self) -> int:
    """Number of grid steps over the heads."""
    return self.heads // self.group

  @property
  def lanes(self) -> int:
    """Width of a group of heads."""
    return self.group * self.head_dim


ROWS_BY_ROWS = (((1,), (1,)), ((), ()))  # a @ b.T
COLUMNS_BY_COLUMNS = (((0,), (0,)), ((), ()))  # a.T @ b
PRODUCT = (((1,), (0,)), ((), ()))


def dot(a: jax.Array, b: jax.Array, dimensions: tuple) -> jax.Array:
  """Multiplies two arrays with float32 accumulation; `dimensions` is one of this module's constants."""
  return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _of_head(sizes: Sizes, x: jax.Array, head: int) -> jax.Array:
  """Returns x [tokens, lanes] with all lanes set to 0 except one head's."""
  if sizes.group == 1:
    return x
  at = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  own = (at >= head * sizes.head_dim) & (at < (head + 1) * sizes.head_dim)
  return jnp.where(own, x, jnp.zeros_like(x))


def by_head(sizes: Sizes, tokens: jax.Array) -> jax.Array:
  """Stacks [TILE, lanes] tokens once for each head: [group * TILE, lanes]."""
  return jnp.concatenate([_of_head(sizes, tokens, head) for head in range(sizes.group)], axis=0)


def product_by_head(sizes: Sizes, turned: jax.Array, columns: jax.Array) -> jax.Array:
  """Multiplies each head's lanes of `turned` [lanes, keys] with its columns: [lanes, TILE].

  `columns` is [keys, group * TILE]. It equals `joined` of the whole product, but computes no more than
  needed.
  """
  width, heads = sizes.head_dim, range(sizes.group)
  pairs = [(turned[at * width : (at + 1) * width], columns[:, at * TILE : (at + 1) * TILE]) for at in heads]
  return jnp.concatenate([dot(*pair, PRODUCT) for pair in pairs], axis=0)


def side_by_side(rows: jax.Array) -> jax.Array:
  """Concatenates rows: [group, TILE] to [1, group * TILE]."""
  return jnp.concatenate([rows[head : head + 1] for head in range(rows.shape[0])], axis=1)


def one_below_another(sizes: Sizes, row: jax.Array) -> jax.Array:
  """Inverts `side_by_side`."""
  return jnp.concatenate([row[:, at * TILE : (at + 1) * TILE] for at in range(sizes.group)], axis=0)


def joined(sizes: Sizes, product: jax.Array) -> jax.Array:
  """Selects each head's own block: [lanes, group * TILE] to [lanes, TILE]."""
  width, heads = sizes.head_dim, range(sizes.group)
  blocks = [product[at * width : (at + 1) * width, at * TILE : (at + 1) * TILE] for at in heads]
  return jnp.concatenate(blocks, axis=0)


def by_lane(sizes: Sizes, of_heads: jax.Array) -> jax.Array:
  """Repeats each head's row for all of its lanes: [group, TILE] to [lanes, TILE]."""
  parts = [jnp.broadcast_to(of_heads[head : head + 1], (sizes.head_dim, TILE)) for head in range(sizes.group)]
  return jnp.concatenate(parts, axis=0)


def _exchanged(sizes: Sizes, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns x [tokens, lanes] with each head's halves exchanged, and where the first halves are, bool."""
  half = sizes.head_dim // 2
  is_first = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) % sizes.head_dim < half
  return jnp.where(is_first, pltpu.roll(x, sizes.lanes - half, 1), pltpu.roll(x, half, 1)), is_first


def rotations(sizes: Sizes, turns: jax.Array) -> jax.Array:
  """Returns [tokens, 2 lanes] for `rotated`: each lane's cosine, then its sine, negative in first halves.

  `turns` is [tokens, head_dim] float32, cosines, then sines.
  """
  turns = jnp.concatenate([turns] * sizes.group, axis=1)
  others, is_first = _exchanged(sizes, turns)
  return jnp.concatenate([jnp.where(is_first, turns, others), jnp.where(is_first, -others, turns)], axis=1)


def rotated(sizes: Sizes, x: jax.Array, turns: jax.Array, *, is_back: bool = False) -> jax.Array:
  """Computes `rope.rotate` of [tokens, lanes], or its inverse, in float32; `turns` are `rotations`."""
  wide = x.astype(jnp.float32)
  others = _exchanged(sizes, wide)[0] * turns[:, sizes.lanes :]
  return wide * turns[:, : sizes.lanes] + (-others if is_back else others)


def over_lanes(sizes: Sizes, of_lanes: jax.Array) -> jax.Array:
  """Sums over the lanes of each head: [lanes, TILE] to [group, TILE]."""
  parts = jnp.split(of_lanes, sizes.group, axis=0)
  return jnp.concatenate([jnp.sum(part, axis=0, keepdims=True) for part in parts], axis=0)
