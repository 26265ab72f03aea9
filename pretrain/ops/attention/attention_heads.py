"""How the heads of a group lie in a tile of the TPU kernels, and products with them.

The heads share the 128 lanes of a register. With their queries below each other, the lanes of other heads set
to 0, one product has the scores of all, side by side.
"""

import jax
import jax.numpy as jnp

from pretrain.ops.attention.attention_sizes import TILE, Sizes

ROWS_BY_ROWS = (((1,), (1,)), ((), ()))  # a @ b.T
COLUMNS_BY_COLUMNS = (((0,), (0,)), ((), ()))  # a.T @ b
PRODUCT = (((1,), (0,)), ((), ()))


def dot(a: jax.Array, b: jax.Array, dimensions: tuple) -> jax.Array:
  """A product of two arrays as one of this module's `dimensions` says, summed up in float32."""
  return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _of_head(sizes: Sizes, x: jax.Array, head: int) -> jax.Array:
  """x [tokens, lanes] with the lanes that are not of a head of the group set to 0."""
  if sizes.group == 1:
    return x
  at = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
  own = (at >= head * sizes.head_dim) & (at < (head + 1) * sizes.head_dim)
  return jnp.where(own, x, jnp.zeros_like(x))


def by_head(sizes: Sizes, tokens: jax.Array) -> jax.Array:
  """[TILE, lanes] to [group * TILE, lanes], the tokens once for each head, below each other."""
  return jnp.concatenate([_of_head(sizes, tokens, head) for head in range(sizes.group)], axis=0)


def product_by_head(sizes: Sizes, turned: jax.Array, columns: jax.Array) -> jax.Array:
  """[lanes, TILE]: the lanes of each head, of `turned` [lanes, keys], times its [keys, group * TILE] columns.

  `joined` of the whole product, without the lanes of one head times the columns of another.
  """
  width, heads = sizes.head_dim, range(sizes.group)
  pairs = [(turned[at * width : (at + 1) * width], columns[:, at * TILE : (at + 1) * TILE]) for at in heads]
  return jnp.concatenate([dot(*pair, PRODUCT) for pair in pairs], axis=0)


def side_by_side(rows: jax.Array) -> jax.Array:
  """[group, TILE] to [1, group * TILE]."""
  return jnp.concatenate([rows[head : head + 1] for head in range(rows.shape[0])], axis=1)


def one_below_another(sizes: Sizes, row: jax.Array) -> jax.Array:
  """The inverse of `side_by_side`."""
  return jnp.concatenate([row[:, at * TILE : (at + 1) * TILE] for at in range(sizes.group)], axis=0)


def joined(sizes: Sizes, product: jax.Array) -> jax.Array:
  """[lanes, group * TILE] to [lanes, TILE]: of the lanes of each head what stands in its columns."""
  width, heads = sizes.head_dim, range(sizes.group)
  blocks = [product[at * width : (at + 1) * width, at * TILE : (at + 1) * TILE] for at in heads]
  return jnp.concatenate(blocks, axis=0)


def by_lane(sizes: Sizes, of_heads: jax.Array) -> jax.Array:
  """[group, TILE] of heads to [lanes, TILE]: a head's row for each of its lanes."""
  parts = [jnp.broadcast_to(of_heads[head : head + 1], (sizes.head_dim, TILE)) for head in range(sizes.group)]
  return jnp.concatenate(parts, axis=0)


def over_lanes(sizes: Sizes, of_lanes: jax.Array) -> jax.Array:
  """[lanes, TILE] to [group, TILE]: sums over the lanes of each head."""
  parts = jnp.split(of_lanes, sizes.group, axis=0)
  return jnp.concatenate([jnp.sum(part, axis=0, keepdims=True) for part in parts], axis=0)
