"""Looks up rows of a table; on NVIDIA GPUs the gradient is summed in a fixed order.

JAX's own gradient is a scatter, which GPUs sum with atomics, in varying order, if a row is read several
times.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.mesh.sharding import constrain
from pretrain.ops.attention.attention import platform, takes_triton
from pretrain.ops.vocab import lookup_triton


def lookup(table: jax.Array, ids: jax.Array, *, fixed: int) -> tuple[jax.Array, jax.Array]:
  """Returns rows [batch, length, width] for ids [batch, length] int32, and the table for its other readers.

  Row `fixed` gets no gradient from the lookup. The kernels add the lookup's gradient to that of the returned
  table, in place.
  """
  if takes_triton():
    return with_kernels(fixed, table, ids)
  vectors = constrain(table[ids], "batch", "length", "embed")
  return jnp.where((ids == fixed)[..., None], jax.lax.stop_gradient(vectors), vectors), table


def added(table: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
  """Computes `table.at[ids].add(rows)` for a table [height, width], ids [...] int32 and rows [..., width]."""
  return lookup_triton.added(table, ids, rows) if takes_triton() else table.at[ids].add(rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def with_kernels(fixed: int, table: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Computes `lookup` with the gradient of `lookup_triton`."""
  del fixed
  return table[ids], table


def _forward(fixed: int, table: jax.Array, ids: jax.Array) -> tuple[tuple, jax.Array]:
  return with_kernels(fixed, table, ids), ids


def _backward(fixed: int, ids: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
  of_rows, of_table = given
  return lookup_triton.added(of_table, jnp.where(ids == fixed, len(of_table), ids), of_rows), None


with_kernels.defvjp(_forward, _backward)


def of_few_rows(table: jax.Array, ids: np.ndarray) -> jax.Array:
  """Returns `table[ids]`; its gradient on GPUs compares all ids with each of the table's few rows."""
  if platform() != "gpu":
    return table[ids]

  def gradient(_, given: jax.Array) -> tuple[jax.Array]:
    is_row = np.arange(len(table))[:, None] == ids.reshape(-1)
    return (jnp.sum(jnp.where(is_row[..., None], given.reshape(1, ids.size, -1), 0), axis=1),)

  read = jax.custom_vjp(lambda table: table[ids])
  read.defvjp(lambda table: (table[ids], None), gradient)
  return read(table)
