"""A fixed number of positions per row: gathered, read and written with static shapes.

Rows are mapped over, so that a batch sharded over devices needs no communication for it.
"""

import jax
import jax.numpy as jnp


def gather_positions(selected: jax.Array, slots: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Turns a bool mask [batch, length] into `slots` positions per row, and drops the last ones beyond them.

  Returns:
    [batch, slots] int32 ascending positions (unused slots: `length`), [batch, slots] float32 weights, and
    [batch] int32 numbers of dropped selections.
  """
  length = selected.shape[1]
  order = jnp.where(selected, jnp.arange(length, dtype=jnp.int32), length)
  positions = jnp.sort(order, axis=-1)[:, :slots]
  overflow = jnp.maximum(jnp.sum(selected, axis=-1, dtype=jnp.int32) - slots, 0)
  return positions, (positions < length).astype(jnp.float32), overflow


def scatter_positions(base: jax.Array, positions: jax.Array, values: jax.Array) -> jax.Array:
  """`base` [batch, length, ...] with values [batch, slots, ...] at each row's positions [batch, slots] int32.

  Positions out of range write nothing.
  """
  return jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(base, positions, values)


def take_positions(array: jax.Array, positions: jax.Array) -> jax.Array:
  """Reads each row at its positions (out of range: the last): [batch, length, ...] to [batch, slots, ...]."""
  return jax.vmap(lambda row, at: jnp.take(row, at, axis=0, mode="clip"))(array, positions)


def first_slots(positions: jax.Array) -> jax.Array:
  """The first slot with the same position, [batch, slots] int32: doubled positions then agree on a token."""
  same = positions[:, :, None] == positions[:, None, :]
  return jnp.argmax(same, axis=-1).astype(jnp.int32)
