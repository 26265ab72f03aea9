"""In which order the devices of one or several machines stand in a mesh, and which rows each process reads.

Within a TPU slice JAX lays the axes along the links of the torus. Several slices, and GPUs of several nodes
(JAX calls each a slice), are connected by a slower network: whole parts of `data` or `fsdp` go across it,
never `tensor`. A device tells by `slice_index`, `coords` and `process_index` where it stands.
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
  """The devices as [data, fsdp, tensor] objects; their number fits the settings (`command.rules`).

  ConfigError: the layout cannot be had on these devices; the line names the nearest that can.
  """
  sizes = settings.filled(len(devices))
  assert sizes is not None, (settings, len(devices))
  slices = _slices(devices)
  try:
    return _laid_out(sizes, slices, settings.fsdp_across_slices)
  except _CannotBeHad as error:
    near = nearest(sizes, len(devices), can=lambda other: _can(other, slices, settings.fsdp_across_slices))
    advice = f"the nearest layout that can is {shown(near)}" if near else "no other layout can be had either"
    asked = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes._asdict().items())
    raise ConfigError(f"{asked}: {error}; {advice}") from error


class _CannotBeHad(Exception):
  """Why devices cannot be laid out as asked."""


def _slices(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
  """The devices by slice, all slices of one size."""
  key = lambda device: getattr(device, "slice_index", None) or 0  # noqa: E731 (None: there is one slice)
  slices = [list(group) for _, group in itertools.groupby(sorted(devices, key=key), key)]
  numbers = [len(group) for group in slices]
  if len(set(numbers)) > 1:
    raise ConfigError(
      f"the nodes or slices have {', '.join(map(str, numbers))} devices; a mesh needs as many on each: start "
      "on machines of one kind, with all their devices free"
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
  # [data across, fsdp across, data within, fsdp within, tensor]: what goes across is the outer part.
  parts = parts.reshape(data, fsdp, *within).transpose(0, 2, 1, 3, 4)
  return parts.reshape(sizes)


def _across(sizes: Sizes, slices: int, fsdp_first: bool) -> tuple[int, int]:
  """How many parts of `data` and of `fsdp` lie on different slices: as many of the first as can be."""
  if fsdp_first:
    fsdp = math.gcd(sizes.fsdp, slices)
    data = slices // fsdp
  else:
    data = math.gcd(sizes.data, slices)
    fsdp = slices // data
  if sizes.data % data or sizes.fsdp % fsdp:
    raise _CannotBeHad(
      f"there are {slices} nodes or slices, joined by a network that tensor must not cross: mesh.data x "
      f"mesh.fsdp must be a multiple of {slices}"
    )
  return data, fsdp


def _in_slice(shape: tuple[int, ...], devices: list[jax.Device]) -> np.ndarray:
  """Devices of one slice; an axis takes whole axes of the torus if it can, else parts of them."""
  problem = ""
  for may_split in (False, True):
    try:
      return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=may_split)
    except (NotImplementedError, ValueError, AssertionError) as error:
      problem = reason(error)
  raise _CannotBeHad(f"JAX finds no such order of {len(devices)} x {devices[0].device_kind} ({problem})")


def parts_of(devices: np.ndarray, process: int) -> list[int]:
  """Which of the data x fsdp equal parts of a batch the devices [data, fsdp, tensor] of a process hold."""
  holders = devices.reshape(-1, devices.shape[-1])
  return [
    part for part, group in enumerate(holders) if any(device.process_index == process for device in group)
  ]


def rows_of(devices: np.ndarray, rows: int, process: int) -> list[int]:
  """The rows of a batch that the devices [data, fsdp, tensor] of a process hold, in order.

  `rows` are a multiple of the devices along `data` and `fsdp`. They need not be neighbours.
  """
  each = rows // devices[..., 0].size
  return [row for part in parts_of(devices, process) for row in range(part * each, (part + 1) * each)]
