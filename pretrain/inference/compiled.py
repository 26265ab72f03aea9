"""Compiles a function of parameters and a batch once for each shape, with its rows shared among devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pretrain.inference import batches
from pretrain.inference.batches import Batch, Input
from pretrain.mesh.devices import memory_errors


class Compiled:
  """Runs a function of parameters and a batch on this process's devices; compiles it once per shape."""

  def __init__(
    self,
    function: Callable[[Any, Any], Any],
    params: Any,
    *,
    batch_size: int,
    longest: int,
    pad_id: int,
    devices: Sequence[jax.Device] | None = None,
  ) -> None:
    """Puts the parameters on the devices; nothing is compiled yet.

    Args:
      function: (params, batch) -> a tree of arrays with the batch's rows first.
      params: host arrays; every device gets all of them.
      batch_size: rows of a batch, rounded up to a multiple of the number of devices.
      longest: tokens of the longest input.
      devices: None for all devices of this process.
    """
    devices = jax.local_devices() if devices is None else devices
    mesh, rows = Mesh(np.asarray(devices), ("rows",)), PartitionSpec("rows")
    self._num_devices = len(devices)
    self._batch_size = -(-batch_size // len(devices)) * len(devices)
    self._lengths, self._pad_id = batches.ladder(longest), pad_id
    self._place = NamedSharding(mesh, rows)
    self._params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    # Devices exchange nothing, as in fine-tuning.
    own_rows = jax.shard_map(
      function, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows, check_vma=False
    )
    self._function = jax.jit(own_rows)
    self.shapes: set[tuple[int, ...]] = set()  # (rows, length) of compiled batches

  def _compute(self, batch: Batch) -> Any:
    self.shapes.add(batch["ids"].shape)
    return self._function(self._params, jax.device_put(batch, self._place))

  def __call__(self, inputs: Sequence[Input]) -> list[Any]:
    """Returns the output for each input, as host arrays in order; see `batches.outputs`.

    ConfigError: a batch does not fit into memory.
    """
    size = self._batch_size
    with memory_errors(
      lambda reason: (
        f"out of memory with {size} rows in a batch ({reason})\n  --batch_size={max(1, size // 2)}"
      )
    ):
      return batches.outputs(
        inputs,
        self._compute,
        batch_size=size,
        lengths=self._lengths,
        pad_id=self._pad_id,
        multiple=self._num_devices,
      )
