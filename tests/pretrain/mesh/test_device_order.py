"""Meshes of machines that are not here: GPU nodes and TPU slices, as objects that say where they stand.

Real TPU slices, which libtpu describes without having them: tests/pretrain/mesh/test_topologies.py.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.mesh import device_order
from pretrain.settings.mesh import MeshSettings, Sizes, nearest


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


def gpus(nodes: int, per_node: int = 8) -> list:
  return [
    Device(n * per_node + i, process_index=n, slice_index=n) for n in range(nodes) for i in range(per_node)
  ]


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
  return device_order.arrange(MeshSettings(data, fsdp, tensor, **settings), devices)


def crossing(mesh: np.ndarray) -> set[str]:
  """The axes along which neighbours lie on different slices."""
  slices = np.vectorize(lambda device: device.slice_index)(mesh)
  return {axis for number, axis in enumerate(Sizes._fields) if (np.diff(slices, axis=number) != 0).any()}


@pytest.mark.parametrize("nodes", [2, 32])
def test_gpus_of_several_nodes_make_a_mesh(nodes):
  devices = gpus(nodes)
  for sizes, axes in [
    ((-1, 1, 1), {"data"}),
    ((-1, 8, 1), {"data"}),
    ((-1, 1, 8), {"data"}),
    ((-1, 4, 2), {"data"}),
    ((1, -1, 1), {"fsdp"}),
    ((2, -1, 2), {"data"} if nodes == 2 else {"data", "fsdp"}),
  ]:
    mesh = arranged(devices, *sizes)
    assert set(mesh.flat) == set(devices)
    assert crossing(mesh) == axes, sizes


def test_fsdp_goes_across_slices_where_that_is_asked_for():
  mesh = arranged(gpus(2), data=4, fsdp=4, fsdp_across_slices=True)
  assert crossing(mesh) == {"fsdp"}
  # The outer half of the axis is the other node: rings stay within a node but for two links.
  assert [device.slice_index for device in mesh[0, :, 0]] == [0, 0, 1, 1]
  assert crossing(arranged(gpus(2), data=4, fsdp=4)) == {"data"}
  assert crossing(arranged(gpus(2), data=16, fsdp_across_slices=True)) == {"data"}


def test_tensor_never_crosses_nodes_and_the_nearest_layout_is_named():
  with pytest.raises(ConfigError) as raised:
    arranged(gpus(2), data=1, tensor=16)
  line = str(raised.value)
  assert line.startswith("mesh.data=1, mesh.fsdp=1, mesh.tensor=16: there are 2 nodes or slices")
  assert line.endswith("--config.mesh.data=2 --config.mesh.fsdp=1 --config.mesh.tensor=8")
  assert "\n" not in line


def test_nodes_with_different_numbers_of_devices_are_refused():
  with pytest.raises(ConfigError, match="the nodes or slices have 8, 6 devices"):
    arranged(gpus(2)[:14])


def test_a_slice_without_such_an_order_is_refused_with_one_that_has_it():
  # Six chips of a slice, the last row cut short: no part of a torus.
  devices = v5e(4, 4)[:6]
  with pytest.raises(ConfigError, match="JAX cannot arrange 6 x TPU v5 lite so") as raised:
    arranged(devices, data=2, fsdp=3)
  assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
  "devices", [gpus(2), v5e(4, 8), v5e(4, 4, slices=2)], ids=["gpus", "v5e", "two slices"]
)
@pytest.mark.parametrize("sizes", [(-1, 1, 1), (1, -1, 1), (-1, 4, 1), (-1, 1, 2), (-1, 2, 4)])
def test_a_process_reads_exactly_the_rows_of_its_devices(devices, sizes):
  mesh, rows = arranged(devices, *sizes), 64
  each = rows // mesh[..., 0].size
  read = set()
  for process in {device.process_index for device in devices}:
    wanted = [
      (data * mesh.shape[1] + fsdp) * each + row
      for data, fsdp in itertools.product(*map(range, mesh.shape[:2]))
      for row in range(each)
      if process in {device.process_index for device in mesh[data, fsdp]}
    ]
    assert device_order.rows_of(mesh, rows, process) == wanted
    read.update(wanted)
  assert read == set(range(rows))


def test_on_a_torus_the_rows_of_a_host_are_not_neighbours():
  rows = device_order.rows_of(arranged(v5e(4, 4)), 16, 0)
  assert len(rows) == 4 and rows[-1] - rows[0] > 3


def test_the_nearest_layout_changes_as_few_sizes_as_little_as_can_be():
  assert nearest(Sizes(16, 1, 1), 8) == (8, 1, 1)
  assert nearest(Sizes(-1, 3, 1), 8) == (2, 4, 1)
  assert nearest(Sizes(2, 2, 4), 8) == (2, 2, 2)
  assert nearest(Sizes(2, 2, 4), 8, can=lambda sizes: sizes.tensor == 1) == (4, 2, 1)
  assert nearest(Sizes(1, 1, 1), 8, can=lambda sizes: False) is None
