"""What a run looks at while it trains: updates that are not finite, leaping losses, replicas that differ."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from data.errors import DivergedError
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.mesh import trees
from pretrain.reading.batches import Batches
from pretrain.run import Run
from pretrain.step import TrainState
from pretrain.watching import diagnosis
from pretrain.watching.spikes import Spikes

ArrayTree = Any
Sums = dict[str, tuple[float, float]]


@dataclasses.dataclass
class Watch:
  """Looks at every step of a run; what it cannot go on with, it raises."""

  run: Run
  checkpoints: Checkpoints
  batches: Batches
  spikes: Spikes
  workdir: str
  log: Callable[[str], None]
  _has_saved: bool = False

  def see(self, done: int, loss: float, in_a_row: float, state: TrainState, sums: Sums) -> None:
    """Takes the loss of update number `done`, and how many in a row were not applied.

    Where spikes are counted, 'loss_spikes' is added to the `sums` of the logging interval. DivergedError: too
    many updates in a row were not finite, or the loss leaps whatever is left out. RollBack: it leapt, and the
    config says to go back.
    """
    settings = self.run.config.train
    if in_a_row >= settings.max_nonfinite_steps:
      self._stop(done, int(in_a_row), state)
    if not settings.spike_zscore:
      return
    zscore = self.spikes.see(loss)
    number, _ = sums.get("loss_spikes", (0.0, 1.0))
    sums["loss_spikes"] = (number + (zscore is not None), 1.0)
    if zscore is None:
      return
    self.log(f"Loss spike at step {done:,}: {loss:.4f}, {zscore:.1f} standard deviations above those before")
    if settings.spike_roll_back:
      self._roll_back(done, loss, zscore)

  def _stop(self, done: int, in_a_row: int, state: TrainState) -> None:
    latest = self.checkpoints.latest_step()
    ids, examples = self.batches.again(done - 1)
    cause = diagnosis.write(self.run, state, ids, step=done, examples=examples, workdir=self.workdir)
    raise DivergedError(
      f"loss or gradients were not finite for {in_a_row} steps in a row up to step {done:,}; none of "
      f"those updates was applied; lower optimizer.learning_rate or raise optimizer.warmup_steps "
      f"(last checkpoint: {'none' if latest is None else f'step {latest:,}'}; {cause})"
    )

  def _roll_back(self, done: int, loss: float, zscore: float) -> None:
    self.checkpoints.wait()
    latest = self.checkpoints.latest_step()
    if latest is None:
      self.log("There is no checkpoint yet to go back to; going on")
      return
    roll_back = self.spikes.roll_back(done, loss, zscore, to=latest)
    self.log(f"Going back to step {latest:,}; the {roll_back.skip.batches:,} batches since are left out")
    raise roll_back

  def look_at_saves(self) -> None:
    """Raises the StorageError of a save that has failed; notes in the workdir, once, that one is whole."""
    self.checkpoints.check()
    if not self._has_saved and self.checkpoints.has_committed:
      workdir_files.note_saved(self.workdir)
      self._has_saved = True

  def compare_replicas(self, done: int, state: TrainState) -> None:
    """Every `train.replica_check_every` steps: DivergedError where devices hold other bits of a parameter."""
    every = self.run.config.train.replica_check_every
    lines = replicas_that_differ(state.params, self.run.mesh) if every and done % every == 0 else []
    if lines:
      raise DivergedError(
        f"at step {done:,} {trees.first_lines(lines)}: a device computes or stores wrongly; take it out and "
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
