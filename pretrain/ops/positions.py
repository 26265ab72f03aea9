"""Reads and writes a fixed number of positions per row, with static shapes.

Rows are mapped over, so that a batch sharded over devices needs no communication.
"""

import jax
import jax.numpy as jnp


def gather_positions(selected: jax.Array, slots: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Converts a bool mask [batch, length] to `slots` positions per row; further positions are dropped.

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
  """Returns `base` [batch, length, ...] with `values` written at each row's positions.

  `positions` is [batch, slots] int32, `values` is [batch, slots, ...]; positions out of range are ignored.
  """
  return jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(base, positions, values)


def take_positions(array: jax.Array, positions: jax.Array) -> jax.Array:
  """Reads each row at its positions, [batch, slots, ...]; a position out of range reads the last token."""
  return jax.vmap(lambda row, at: jnp.take(row, at, axis=0, mode="clip"))(array, positions)


def first_slots(positions: jax.Array) -> jax.Array:
  """Returns each slot's first slot of equal position, [batch, slots] int32; duplicates share a token."""
  same = positions[:, :, None] == positions[:, None, :]
  return jnp.argmax(same, axis=-1).astype(jnp.int32)
