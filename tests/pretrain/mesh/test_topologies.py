"""Meshes on the real layouts of TPU slices, which libtpu describes without a chip. Skipped without libtpu."""

import json
import os
import subprocess
import sys

import pytest

from pretrain.plan import targets

# In a process of its own: libtpu wants none of the tests' flags.
PROGRAM = """
import itertools, json, os, sys
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
from jax.experimental import topologies
from pretrain.mesh import device_order
from pretrain.settings.mesh import MeshSettings

found = {}
for name in json.loads(sys.argv[1]):
  name, _, slices = name.partition(" x")
  options = {"num_slices": int(slices)} if slices else {}
  devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
  processes = {device.process_index for device in devices}
  sizes = [1, 2, 4, 8]
  layouts = [(-1, *inner) for inner in itertools.product(sizes, sizes)] + [(1, -1, 1), (1, -1, 2)]
  layouts = [layout for layout in layouts if len(devices) % (layout[1] * layout[2]) == 0]
  for layout in layouts:
    mesh = device_order.arrange(MeshSettings(*layout), devices)
    assert len(set(mesh.flat)) == len(devices), (name, layout)
    groups = mesh.reshape(-1, mesh.shape[2])
    owners = [{device.process_index for device in group} for group in groups]
    for process in processes:
      rows = device_order.rows_of(mesh, 2 * len(groups), process)
      wanted = [2 * part + row for part, owner in enumerate(owners) if process in owner for row in (0, 1)]
      assert rows == wanted, (name, layout, process)
    if slices:
      across = {len({getattr(device, "slice_index") for device in group}) for group in groups}
      assert across == {1}, (name, layout)
  found[f"{name} {slices}".strip()] = [len(devices), len(processes), len(layouts)]
print(json.dumps(found))
"""
# Devices and hosts; " xN": of N slices.
SLICES = {
  "v5e:2x4": (8, 2),
  "v5e:4x4": (16, 4),
  "v5e:4x8": (32, 8),
  "v5e:8x8": (64, 16),
  "v5e:16x16": (256, 64),
  "v5p:2x2x4": (16, 4),
  "v5p:4x4x4": (64, 16),
  "v5p:8x8x8": (512, 128),
  "v6e:4x4": (16, 4),
  "v6e:8x8": (64, 16),
  "v5e:4x4 x2": (32, 8),
  "v5p:2x2x4 x4": (64, 16),
}


def test_data_fsdp_and_tensor_meshes_of_every_slice():
  if not targets.is_installed("tpu"):
    pytest.skip("libtpu, which describes TPU slices, is not installed (requirements-dev.txt has it)")
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  command = [sys.executable, "-c", PROGRAM, json.dumps(list(SLICES))]
  done = subprocess.run(command, capture_output=True, text=True, env=environment)
  assert done.returncode == 0, done.stderr[-2_000:]
  found = json.loads(done.stdout.splitlines()[-1])
  assert {name.replace(" x", " "): numbers for name, numbers in SLICES.items()} == {
    name: tuple(numbers[:2]) for name, numbers in found.items()
  }
  assert all(layouts >= 10 for _, _, layouts in found.values())
