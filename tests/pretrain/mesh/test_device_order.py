"""Meshes of machines that are not here: GPU nodes and TPU slices, as objects that say where they stand."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.mesh import sharding
from pretrain.settings.run import MeshSettings, MeshSizes


@dataclasses.dataclass(frozen=True)
class Device:
  """What JAX's devices say of themselves and a mesh needs."""

  id: int
  process_index: int
  slice_index: int
  device_kind: str = "NVIDIA H100 80GB HBM3"
  platform: str = "gpu"
  coords: tuple[int, ...] = ()
  core_on_chip: int = 0


def gpus(nodes: int) -> list:
  return [Device(number, number // 8, number // 8) for number in range(8 * nodes)]


def v5e(x: int, y: int, slices: int = 1) -> list:
  """Slices of v5e chips, four neighbours (2 x 2) on a host."""
  hosts = x // 2 * y // 2
  return [
    Device(
      (number * y + j) * x + i,
      process_index=number * hosts + j // 2 * (x // 2) + i // 2,
      slice_index=number,
      device_kind="TPU v5 lite",
      platform="tpu",
      coords=(i, j, 0),
    )
    for number in range(slices)
    for j in range(y)
    for i in range(x)
  ]


def arranged(devices, data=-1, fsdp=1, tensor=1, **settings) -> np.ndarray:
  return sharding.arranged(MeshSettings(data, fsdp, tensor, **settings), devices)


def rows_of(mesh: np.ndarray, rows: int, process: int) -> list[int]:
  return sharding.local_rows(SimpleNamespace(devices=mesh), rows, process)  # type: ignore[arg-type]


def crossing(mesh: np.ndarray) -> set[str]:
  """The axes along which neighbours lie on different slices."""
  slices = np.vectorize(lambda device: device.slice_index)(mesh)
  return {axis for number, axis in enumerate(MeshSizes._fields) if (np.diff(slices, axis=number) != 0).any()}


def test_a_process_reads_exactly_the_rows_of_its_devices_in_fifteen_layouts():
  layouts = [(-1, 1, 1), (1, -1, 1), (-1, 4, 1), (-1, 1, 2), (-1, 2, 4)]
  for devices in (gpus(2), v5e(4, 8), v5e(4, 4, slices=2)):
    for sizes in layouts:
      mesh = arranged(devices, *sizes)
      assert set(mesh.flat) == set(devices), sizes
      groups = mesh.reshape(-1, mesh.shape[2])
      each, read = 64 // len(groups), set()
      for process in {device.process_index for device in devices}:
        own = [at for at, group in enumerate(groups) if process in {one.process_index for one in group}]
        rows = rows_of(mesh, 64, process)
        assert rows == [at * each + row for at in own for row in range(each)], sizes
        read.update(rows)
      assert read == set(range(64)), sizes
  rows = rows_of(arranged(v5e(4, 4)), 16, 0)  # on a torus a host's rows are not neighbours
  assert len(rows) == 4 and rows[-1] - rows[0] > 3


def test_only_data_and_then_fsdp_cross_the_network_and_what_cannot_be_is_refused():
  for sizes, axes in [
    ((-1, 8, 1), {"data"}),
    ((-1, 4, 2), {"data"}),
    ((1, -1, 1), {"fsdp"}),
    ((2, -1, 2), {"data", "fsdp"}),
  ]:
    assert crossing(arranged(gpus(32), *sizes)) == axes, sizes
  mesh = arranged(gpus(2), data=4, fsdp=4, fsdp_across_slices=True)
  # The outer half of the axis is the other node: rings stay within a node but for two links.
  assert crossing(mesh) == {"fsdp"} and [device.slice_index for device in mesh[0, :, 0]] == [0, 0, 1, 1]
  for devices, sizes, word in [
    (gpus(2), (1, 1, 16), "mesh.data x mesh.fsdp must be a multiple of 2"),
    (gpus(2)[:14], (-1, 1, 1), "14 x NVIDIA H100 80GB HBM3 in 2 nodes"),
    (v5e(4, 4)[:6], (2, 3, 1), "6 x TPU v5 lite"),  # no part of a torus
  ]:
    with pytest.raises(ConfigError, match=word):
      arranged(devices, *sizes)
