"""The devices of machines that are not there: they can be compiled for and hold nothing.

libtpu's compiler runs on any Linux machine. NVIDIA GPUs are compiled for by XLA's own backend, which needs
their description and ptxas but no driver. `requirements-plan.txt` says how to install both.
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

_PACKAGES = {"tpu": "libtpu", "cuda": "jax-cuda12-plugin", "cpu": "jaxlib"}  # what compiles for a platform
HOW_TO_INSTALL = (
  "run `.venv/bin/python -m pip install -r requirements-plan.txt` (pyproject.toml says what that brings)"
)


@dataclasses.dataclass(frozen=True)
class Target:
  """A machine to compile for."""

  name: str
  chip: Chip
  devices: Sequence[jax.Device]  # they can be compiled for and hold nothing

  @property
  def hosts(self) -> int:
    """Hosts of a TPU slice, nodes of GPUs."""
    return len({device.process_index for device in self.devices})


def describe(name: str) -> Target:
  """The target of a name.

  Raises:
    ConfigError: the name says no chip or shape that there is, or what compiles for it is not installed.
  """
  spec = parse(name)
  if not is_installed(spec.platform):
    raise ConfigError(
      f"target {name}: {_PACKAGES[spec.platform]}, which compiles for it, is not installed; {HOW_TO_INSTALL}"
    )
  if spec.chip is None:
    return Target(name, cpu_chip(spec.devices), _cpu_devices(spec))
  return Target(name, spec.chip, _tpu_devices(name) if spec.platform == "tpu" else _gpu_devices(spec))


def compiler(platform: str) -> str:
  """Name and version of the package that compiles for a platform."""
  package = _PACKAGES[platform]
  return f"{package} {importlib.metadata.version(package)}"


def _tpu_devices(name: str) -> Sequence[jax.Device]:
  # libtpu would ask a metadata server that is not there, and refuse a second process though no chip is held.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
  try:
    return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
  except Exception as error:  # libtpu's own classes, whatever they are
    raise ConfigError(
      f"target {name}: libtpu does not take it ({reason(error)}); give a slice that can be rented"
    ) from error


def _gpu_devices(spec: Spec) -> Sequence[jax.Device]:
  assert spec.chip is not None
  jax.devices()  # finds and registers the plugins that are installed
  nodes = max(1, spec.devices // GPUS_OF_A_NODE)
  return topologies.get_topology_desc(
    "", platform="cuda", topology=f"{nodes}x1x{spec.devices // nodes}", target_config=spec.chip.description
  ).devices


def _cpu_devices(spec: Spec) -> Sequence[jax.Device]:
  devices = jax.devices("cpu")
  if len(devices) < spec.devices:
    raise ConfigError(
      f"target {spec.name}: JAX was started with {len(devices)} CPU devices; set "
      f"XLA_FLAGS=--xla_force_host_platform_device_count={spec.devices}"
    )
  return devices[: spec.devices]
