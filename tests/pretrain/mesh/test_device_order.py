"""Meshes of machines that are not here: GPU nodes and TPU slices, as objects that say where they stand.

Real TPU slices are described by libtpu, which needs no chip; without libtpu they are left out.
"""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.mesh import chips, device_order
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
  return device_order.arrange(MeshSettings(data, fsdp, tensor, **settings), devices)


def crossing(mesh: np.ndarray) -> set[str]:
  """The axes along which neighbours lie on different slices."""
  slices = np.vectorize(lambda device: device.slice_index)(mesh)
  return {axis for number, axis in enumerate(Sizes._fields) if (np.diff(slices, axis=number) != 0).any()}


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
        rows = device_order.rows_of(mesh, 64, process)
        assert rows == [at * each + row for at in own for row in range(each)], sizes
        read.update(rows)
      assert read == set(range(64)), sizes
  rows = device_order.rows_of(arranged(v5e(4, 4)), 16, 0)  # on a torus a host's rows are not neighbours
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
    (gpus(2), (1, 1, 16), "--config.mesh.data=2 --config.mesh.fsdp=1 --config.mesh.tensor=8"),
    (gpus(2)[:14], (-1, 1, 1), "8, 6 devices"),
    (v5e(4, 4)[:6], (2, 3, 1), "6 x TPU v5 lite"),  # no part of a torus
  ]:
    with pytest.raises(ConfigError, match=word):
      arranged(devices, *sizes)
  assert nearest(Sizes(16, 1, 1), 8) == (8, 1, 1)
  assert nearest(Sizes(-1, 3, 1), 8) == (2, 4, 1)
  assert nearest(Sizes(2, 2, 4), 8) == (2, 2, 2)
  assert nearest(Sizes(2, 2, 4), 8, can=lambda sizes: sizes.tensor == 1) == (4, 2, 1)
  assert nearest(Sizes(1, 1, 1), 8, can=lambda sizes: False) is None


# In a process of its own: libtpu wants none of the tests' flags.
PROGRAM = """
import json, os, sys
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
from jax.experimental import topologies
from pretrain.mesh import device_order
from pretrain.settings.mesh import MeshSettings

for name, (count, hosts) in json.loads(sys.argv[1]).items():
  shape, _, slices = name.partition(" x")
  options = {"num_slices": int(slices)} if slices else {}
  devices = topologies.get_topology_desc(platform="tpu", topology_name=shape, **options).devices
  processes = {device.process_index for device in devices}
  assert (len(devices), len(processes)) == (count, hosts), name
  for layout in [(-1, 1, 1), (1, -1, 1), (-1, 4, 1), (-1, 1, 2), (-1, 2, 4), (1, -1, 2)]:
    mesh = device_order.arrange(MeshSettings(*layout), devices)
    assert len(set(mesh.flat)) == count, (name, layout)
    groups = mesh.reshape(-1, mesh.shape[2])
    for process in processes:
      own = [at for at, group in enumerate(groups) if process in {one.process_index for one in group}]
      rows = device_order.rows_of(mesh, 2 * len(groups), process)
      assert rows == [2 * at + row for at in own for row in (0, 1)], (name, layout)
    if slices:
      assert {len({one.slice_index for one in group}) for group in groups} == {1}, (name, layout)
"""
# Devices and hosts; " xN": of N slices.
SLICES = {"v5e:2x4": (8, 2), "v5e:4x8": (32, 8), "v5e:16x16": (256, 64), "v5p:2x2x4": (16, 4)}
SLICES |= {"v5p:4x4x4": (64, 16), "v6e:8x8": (64, 16), "v5e:4x4 x2": (32, 8), "v5p:2x2x4 x4": (64, 16)}


def test_data_fsdp_and_tensor_meshes_of_real_slices():
  if not chips.is_installed("tpu"):
    pytest.skip("libtpu, which describes TPU slices, is not installed (requirements-dev.txt has it)")
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  command = [sys.executable, "-c", PROGRAM, json.dumps(SLICES)]
  done = subprocess.run(command, capture_output=True, text=True, env=environment)
  assert done.returncode == 0, done.stderr[-2_000:]
