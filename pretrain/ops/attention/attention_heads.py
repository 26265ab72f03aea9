"""Layout of a group's heads in a tile of the TPU kernels, and products with them.

The heads share the 128 lanes of a register. Their queries are stacked, with the lanes of other heads set to
0, so that one product computes the scores of all heads side by side.
"""

import jax
import jax.numpy as jnp

from pretrain.ops.attention.attention_sizes import TILE, Sizes

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


def over_lanes(sizes: Sizes, of_lanes: jax.Array) -> jax.Array:
  """Sums over the lanes of each head: [lanes, TILE] to [group, TILE]."""
  parts = jnp.split(of_lanes, sizes.group, axis=0)
  return jnp.concatenate([jnp.sum(part, axis=0, keepdims=True) for part in parts], axis=0)
