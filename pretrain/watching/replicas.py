"""Compares, bit by bit, the parameters of devices that should have the same ones."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from data.errors import DivergedError
from pretrain.listener import Listener
from pretrain.mesh import trees
from pretrain.run import Run

ArrayTree = Any


class Replicas(Listener):
  """Every `train.replica_check_every` steps, raises DivergedError if replicas of a parameter differ."""

  def __init__(self, run: Run) -> None:
    """Reads the interval from the config of the run."""
    self.every, self._mesh = run.config.train.replica_check_every, run.mesh
    self._agreed: int | None = None  # the last step of this start at which they did not differ

  def after(self, step: int, state: Any) -> None:
    """Raises DivergedError if replicas differ; see `Listener.after`."""
    lines = replicas_that_differ(state.params, self._mesh)
    if lines:
      since = "that this start has saved" if self._agreed is None else f"after step {self._agreed:,}"
      raise DivergedError(
        f"at step {step:,} {trees.first_lines(lines)}: a device has a fault; remove it, move the checkpoints "
        f"{since} away, which may have its numbers, and run the same command again"
      )
    self._agreed = step


def replicas_that_differ(params: ArrayTree, mesh: Mesh) -> list[str]:
  """Returns a line for each parameter whose replicas differ between two devices; [] if none does."""
  if mesh.size == 1:
    return []  # a single device has no replicas, so nothing is read or waited for
  leaves = trees.by_path(params)
  specs = tuple(leaf.sharding.spec for leaf in leaves.values())
  checksums = jax.device_get(_checksum_program(mesh, specs)(list(leaves.values())))
  lines = []
  for (path, leaf), of_leaf in zip(leaves.items(), checksums.swapaxes(0, 1).tolist(), strict=True):
    parts = leaf.sharding.devices_indices_map(leaf.shape)
    first: dict[str, tuple[Any, list[int]]] = {}
    for device, checksum in zip(mesh.devices.flat, of_leaf, strict=True):
      known, expected = first.setdefault(str(parts[device]), (device, checksum))
      if checksum != expected:
        lines.append(f"{path} on {device} is not as on {known}")
  return lines


@functools.cache
def _checksum_program(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
  """Compiles checksums of arrays sharded by `specs`, sums modulo 2^32 and xors: [devices, arrays, 2].

  Both are computed in one reduction, a plain loop on a CPU; XLA's own sum alone takes three times as long.
  """
  nothing = (np.uint32(0), np.uint32(0))

  def both(one: Sequence[jax.Array], other: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return one[0] + other[0], one[1] ^ other[1]

  def of_device(held: list[jax.Array]) -> jax.Array:
    words = [jax.lax.bitcast_convert_type(leaf, jnp.uint32) for leaf in held]
    pairs = [jax.lax.reduce((leaf, leaf), nothing, both, range(leaf.ndim)) for leaf in words]
    sums = jnp.stack([jnp.stack(pair) for pair in pairs])
    return jax.lax.all_gather(sums, mesh.axis_names)  # so that every process compares all

  everywhere = PartitionSpec()
  return jax.jit(
    jax.shard_map(of_device, mesh=mesh, in_specs=(list(specs),), out_specs=everywhere, check_vma=False)
  )
