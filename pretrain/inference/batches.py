"""Batches texts of similar length into a few shapes, and restores the order of the outputs.

Padded lengths come from a short list, so that few programs are compiled for any texts. `Compiled` has a
program for each shape, with the rows of a batch shared among devices.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pretrain.mesh.devices import memory_errors

Input = Mapping[str, np.ndarray]  # 'ids' [tokens] int32 with special tokens, and other values for each token
Batch = dict[str, np.ndarray]
_AHEAD = 2  # batches sent to the devices before waiting for the first


def ladder(longest: int) -> list[int]:
  """Returns the padded lengths up to `longest` tokens: 16, 32, then each at most 1.5 times the one before."""
  lengths, step = [16], 16
  while lengths[-1] < longest:
    step = max(16, 1 << (lengths[-1].bit_length() - 2))  # 32 from 128 on, 64 from 256 on, ...
    lengths.append(lengths[-1] + step)
  return [*lengths[:-1], longest]


def pad(inputs: Sequence[Input], *, rows: int, length: int, pad_id: int) -> Batch:
  """Pads at most `rows` inputs to [rows, length] arrays: ids with `pad_id`, other values with 0."""
  batch = {
    name: np.full((rows, length), pad_id if name == "ids" else 0, values.dtype)
    for name, values in inputs[0].items()
  }
  for row, given in enumerate(inputs):
    for name, values in given.items():
      batch[name][row, : len(values)] = values
  return batch


def cut(
  inputs: Sequence[Input], *, batch_size: int, lengths: Sequence[int], pad_id: int, multiple: int = 1
) -> Iterator[tuple[np.ndarray, Batch]]:
  """Yields (indices of inputs, their padded batch), longest texts first, until all inputs are batched.

  The last batch has fewer rows, a power of two times `multiple`; its texts are short, so this is cheap.
  """
  sizes = np.asarray([len(given["ids"]) for given in inputs])
  order = np.argsort(-sizes, kind="stable")
  for start in range(0, len(order), batch_size):
    numbers = order[start : start + batch_size]
    rows = batch_size
    if len(numbers) < batch_size:
      rows = min(batch_size, multiple << max(0, (-(-len(numbers) // multiple) - 1)).bit_length())
    length = lengths[int(np.searchsorted(lengths, sizes[numbers[0]]))]
    yield numbers, pad([inputs[number] for number in numbers], rows=rows, length=length, pad_id=pad_id)


def outputs(
  inputs: Sequence[Input],
  compute: Callable[[Batch], Any],
  *,
  batch_size: int,
  lengths: Sequence[int],
  pad_id: int,
  multiple: int = 1,
) -> list[Any]:
  """Returns the output of `compute` for each input, as host arrays in the order of the inputs.

  `compute` returns for a batch a tree of arrays with rows first, and need not wait for them. Outputs for
  tokens have the batch's padded length.
  """
  results: list[Any] = [None] * len(inputs)
  pending: collections.deque[tuple[np.ndarray, Any]] = collections.deque()

  def take() -> None:
    numbers, tree = pending.popleft()
    tree = jax.device_get(tree)
    for row, number in enumerate(numbers):
      results[number] = jax.tree.map(lambda leaf, row=row: leaf[row], tree)

  cuts = cut(inputs, batch_size=batch_size, lengths=lengths, pad_id=pad_id, multiple=multiple)
  for numbers, batch in cuts:
    pending.append((numbers, compute(batch)))
    if len(pending) > _AHEAD:
      take()
  while pending:
    take()
  return results


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
    self._lengths, self._pad_id = ladder(longest), pad_id
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
    """Returns the output for each input, as host arrays in order; see `outputs`.

    ConfigError: a batch does not fit into memory.
    """
    size = self._batch_size
    with memory_errors(
      lambda reason: (
        f"out of memory with {size} rows in a batch ({reason})\n  --batch_size={max(1, size // 2)}"
      )
    ):
      return outputs(
        inputs,
        self._compute,
        batch_size=size,
        lengths=self._lengths,
        pad_id=self._pad_id,
        multiple=self._num_devices,
      )
