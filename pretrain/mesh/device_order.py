"""The order of devices of one or several machines in a mesh, and the rows that each process reads.

Within a TPU slice JAX assigns axes to the links of the torus. Several slices, and GPUs of several nodes (each
a slice to JAX), are connected by a slower network: only whole parts of `data` or `fsdp` cross it, never
`tensor`. A device's position is in its `slice_index`, `coords` and `process_index`.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils

from data.errors import ConfigError, reason
from pretrain.settings.mesh import MeshSettings, Sizes, nearest, shown


def arrange(settings: MeshSettings, devices: Sequence[jax.Device]) -> np.ndarray:
  """Arranges devices as an array [data, fsdp, tensor]; `command.rules` has checked their number.

  ConfigError: the layout is impossible on these devices; the message suggests the nearest possible one.
  """
  sizes = settings.filled(len(devices))
  assert sizes is not None, (settings, len(devices))
  slices = _slices(devices)
  try:
    return _laid_out(sizes, slices, settings.fsdp_across_slices)
  except _CannotBeHad as error:
    near = nearest(sizes, len(devices), can=lambda other: _can(other, slices, settings.fsdp_across_slices))
    advice = f"the nearest possible layout is {shown(near)}" if near else "no other layout is possible either"
    asked = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes._asdict().items())
    raise ConfigError(f"{asked}: {error}; {advice}") from error


class _CannotBeHad(Exception):
  """Raised if these devices cannot form the requested mesh; the message gives the reason."""


def _slices(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
  key = lambda device: getattr(device, "slice_index", None) or 0  # noqa: E731 (None: there is one slice)
  slices = [list(group) for _, group in itertools.groupby(sorted(devices, key=key), key)]
  numbers = [len(group) for group in slices]
  if len(set(numbers)) > 1:
    raise ConfigError(
      f"the nodes or slices have {', '.join(map(str, numbers))} devices; a mesh needs the same number on "
      "each; use machines of one kind, with all their devices free"
    )
  return slices


def _can(sizes: Sizes, slices: list[list[jax.Device]], fsdp_first: bool) -> bool:
  try:
    _laid_out(sizes, slices, fsdp_first)
  except _CannotBeHad:
    return False
  return True


def _laid_out(sizes: Sizes, slices: list[list[jax.Device]], fsdp_first: bool) -> np.ndarray:
  data, fsdp = _across(sizes, len(slices), fsdp_first)
  within = (sizes.data // data, sizes.fsdp // fsdp, sizes.tensor)
  parts = np.stack([_in_slice(within, devices) for devices in slices])
  # [data across, fsdp across, data within, fsdp within, tensor]: the outer parts are on different slices.
  parts = parts.reshape(data, fsdp, *within).transpose(0, 2, 1, 3, 4)
  return parts.reshape(sizes)


def _across(sizes: Sizes, slices: int, fsdp_first: bool) -> tuple[int, int]:
  """Returns (data, fsdp): how many slices or nodes each axis spans; the preferred axis spans most."""
  if fsdp_first:
    fsdp = math.gcd(sizes.fsdp, slices)
    data = slices // fsdp
  else:
    data = math.gcd(sizes.data, slices)
    fsdp = slices // data
  if sizes.data % data or sizes.fsdp % fsdp:
    raise _CannotBeHad(
      f"there are {slices} nodes or slices, and tensor must not cross the network between them: mesh.data x "
      f"mesh.fsdp must be a multiple of {slices}"
    )
  return data, fsdp


def _in_slice(shape: tuple[int, ...], devices: list[jax.Device]) -> np.ndarray:
  """Orders the devices of one slice; an axis gets whole axes of the torus if possible, else parts of them."""
  problem = ""
  for may_split in (False, True):
    try:
      return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=may_split)
    except (NotImplementedError, ValueError, AssertionError) as error:
      problem = reason(error)
  raise _CannotBeHad(f"JAX cannot arrange {len(devices)} x {devices[0].device_kind} so ({problem})")


def parts_of(devices: np.ndarray, process: int) -> list[int]:
  """Returns the numbers of the batch's data x fsdp parts of which a process's devices compute rows."""
  holders = devices.reshape(-1, devices.shape[-1])
  return [
    part for part, group in enumerate(holders) if any(device.process_index == process for device in group)
  ]


def rows_of(devices: np.ndarray, rows: int, process: int) -> list[int]:
  """Returns the rows of a batch that are on a process's devices [data, fsdp, tensor], in order.

  `rows`, their number, is a multiple of the devices along `data` and `fsdp`. The result may have gaps.
  """
  each = rows // devices[..., 0].size
  return [row for part in parts_of(devices, process) for row in range(part * each, (part + 1) * each)]
