"""Replicas: devices that should hold the same parameters, compared bit by bit."""

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
  """Ends a run, every `train.replica_check_every` steps, where devices hold other bits of a parameter."""

  def __init__(self, run: Run) -> None:
    """Reads how often from the config of the run."""
    self.every, self._mesh = run.config.train.replica_check_every, run.mesh

  def after(self, step: int, state: Any) -> None:
    """DivergedError: they differ; see `Listener.after`."""
    lines = replicas_that_differ(state.params, self._mesh)
    if lines:
      raise DivergedError(
        f"at step {step:,} {trees.first_lines(lines)}: a device computes or stores wrongly; take it out and "
        "start again, which continues from the last checkpoint"
      )


def replicas_that_differ(params: ArrayTree, mesh: Mesh) -> list[str]:
  """A line for each parameter of which two devices that should hold the same hold other bits; [] if none."""
  if mesh.size == 1:
    return []  # one device has nothing to be compared with: nothing is read and nothing waited for
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
  """Compiles, for arrays cut by `specs`, sums modulo 2^32 and xors of a device's words: [devices, arrays, 2].

  Both in one pass, which XLA makes a plain loop on a CPU too: the sum alone takes it three times as long.
  """
  nothing = (np.uint32(0), np.uint32(0))

  def both(one: Sequence[jax.Array], other: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return one[0] + other[0], one[1] ^ other[1]

  def of_device(held: list[jax.Array]) -> jax.Array:
    words = [jax.lax.bitcast_convert_type(leaf, jnp.uint32) for leaf in held]
    pairs = [jax.lax.reduce((leaf, leaf), nothing, both, range(leaf.ndim)) for leaf in words]
    sums = jnp.stack([jnp.stack(pair) for pair in pairs])
    return jax.lax.all_gather(sums, mesh.axis_names)  # every process compares all

  everywhere = PartitionSpec()
  return jax.jit(
    jax.shard_map(of_device, mesh=mesh, in_specs=(list(specs),), out_specs=everywhere, check_vma=False)
  )
