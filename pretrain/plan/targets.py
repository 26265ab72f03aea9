"""Devices of other machines: programs can be compiled for them, but not run.

libtpu's compiler works on any Linux machine. XLA's own backend compiles for NVIDIA GPUs and needs their
description and ptxas, but no driver. Both are in `requirements-plan.txt`.
"""

import dataclasses
import importlib.metadata
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from data.errors import ConfigError, reason
from pretrain.mesh.chips import GPUS_OF_A_NODE, Chip, Spec, is_installed, parse
from pretrain.plan.this_machine import cpu_chip

_PACKAGES = {
  "tpu": "libtpu",
  "cuda": "jax-cuda12-plugin",
  "cpu": "jaxlib",
}  # platform -> package that compiles for it
HOW_TO_INSTALL = "run\n  .venv/bin/python -m pip install -r requirements-plan.txt"


@dataclasses.dataclass(frozen=True)
class Target:
  """A machine that programs are compiled for: its name, kind of chip, and devices without memory."""

  name: str
  chip: Chip
  devices: Sequence[jax.Device]  # without memory or data

  @property
  def hosts(self) -> int:
    """Number of hosts of a TPU slice, or of nodes with GPUs."""
    return len({device.process_index for device in self.devices})


def describe(name: str) -> Target:
  """Returns the target of a name such as 'v5e:2x4'.

  Raises:
    ConfigError: the chip or shape is unknown, or its compiler is not installed.
  """
  spec = parse(name)
  if not is_installed(spec.platform):
    raise ConfigError(
      f"target {name}: its compiler {_PACKAGES[spec.platform]} is not installed; {HOW_TO_INSTALL}"
    )
  if spec.chip is None:
    return Target(name, cpu_chip(spec.devices), _cpu_devices(spec))
  return Target(name, spec.chip, _tpu_devices(name) if spec.platform == "tpu" else _gpu_devices(spec))


def compiler(platform: str) -> str:
  """Returns name and version of the package that compiles for a platform."""
  package = _PACKAGES[platform]
  return f"{package} {importlib.metadata.version(package)}"


def _tpu_devices(name: str) -> Sequence[jax.Device]:
  # Without these libtpu would query a metadata server, and reject a second process although no chip is used.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
  try:
    return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
  except Exception as error:  # libtpu raises its own classes
    raise ConfigError(
      f"target {name}: libtpu does not support it ({reason(error)}); expected a slice that exists"
    ) from error


def _gpu_devices(spec: Spec) -> Sequence[jax.Device]:
  assert spec.chip is not None
  jax.devices()  # registers the installed plugins
  nodes = max(1, spec.devices // GPUS_OF_A_NODE)
  return topologies.get_topology_desc(
    "", platform="cuda", topology=f"{nodes}x1x{spec.devices // nodes}", target_config=spec.chip.description
  ).devices


def _cpu_devices(spec: Spec) -> Sequence[jax.Device]:
  devices = jax.devices("cpu")
  if len(devices) < spec.devices:
    raise ConfigError(
      f"target {spec.name}: JAX was started with {len(devices)} CPU devices; first run\n"
      f"  export XLA_FLAGS=--xla_force_host_platform_device_count={spec.devices}"
    )
  return devices[: spec.devices]
