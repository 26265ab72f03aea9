"""Machines to compile for without having them, by name, and what their makers say of them.

TPU slices are named as Cloud TPU names their shapes ('v5e:2x4', 'v5p:4x4x4', 'v6e:8x8'); libtpu's compiler
runs on any Linux machine. NVIDIA GPUs ('h100', 'h200', 'a100') are compiled for by XLA's own backend, which
needs their description and ptxas but no driver. `requirements-plan.txt` says how to install both.
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence

import jax
from jax.experimental import topologies

from data.errors import ConfigError, reason
from pretrain import flops


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device, from its maker's data sheet.

  Attributes:
    name: as a target is named.
    kind: what the device calls itself, JAX's `device_kind`.
    hbm_bytes: memory of one device.
    bandwidth: of that memory, bytes/s.
    link_bandwidth: to other chips of a slice, or to other GPUs, bytes/s, all links together, one way.
    clock: of the matrix units in Hz, which turns estimated cycles into seconds; 0: no cycles are estimated.
    platform: as `jax.experimental.topologies` names it.
    description: what XLA must know of a GPU, as a GpuTargetConfigProto in text form.
  """

  name: str
  kind: str
  hbm_bytes: float
  bandwidth: float
  link_bandwidth: float
  clock: float = 0.0
  platform: str = "tpu"
  description: str = ""

  @property
  def peak_flops(self) -> float:
    """Dense bfloat16 FLOP/s."""
    peak = flops.peak_flops(self.kind)
    assert peak is not None, self.kind
    return peak


# cloud.google.com/tpu/docs/{v5e,v5p,v6e}. Clocks follow from the peaks: matrix units x their size^2 x 2 x
# clock, with 4 x 128^2 (v5e), 8 x 128^2 (v5p) and 4 x 256^2 (v6e).
_GIB = float(1 << 30)
_TPUS = (
  Chip("v5e", "TPU v5 lite", 16 * _GIB, 819e9, 200e9, clock=1.5e9),
  Chip("v5p", "TPU v5", 95 * _GIB, 2765e9, 600e9, clock=1.75e9),
  Chip("v6e", "TPU v6 lite", 32 * _GIB, 1638e9, 448e9, clock=1.75e9),
)


def _gpu(
  name: str, *, title: str, cores: int, capability: int, shared: int, l2: int, clock: float, **facts
) -> Chip:
  """A GPU from the figures of its CUDA device properties."""
  description = f"""
    gpu_device_info {{
      threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
      shared_memory_per_block: 49152 shared_memory_per_core: {shared + 1024}
      shared_memory_per_block_optin: {shared}
      core_count: {cores} fpus_per_core: {128 if capability == 9 else 64}
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: {int(facts["bandwidth"])} l2_cache_size: {l2} clock_rate_ghz: {clock}
      device_memory_size: {int(facts["hbm_bytes"])}
      cuda_compute_capability {{ major: {capability} minor: 0 }}
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
    }}
    platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
    device_description_str: "{title}"
  """
  return Chip(name, title, platform="cuda", description=description, **facts)


# NVIDIA's data sheets of the SXM boards, and the properties that CUDA reports of them.
_HOPPER = {"cores": 132, "capability": 9, "shared": 232_448, "l2": 52_428_800, "clock": 1.98}
_AMPERE = {"cores": 108, "capability": 8, "shared": 166_912, "l2": 41_943_040, "clock": 1.41}
_GPUS = (
  _gpu("h100", title="NVIDIA H100 80GB HBM3", hbm_bytes=84_942_979_072.0, bandwidth=3352e9,
       link_bandwidth=450e9, **_HOPPER),
  _gpu("h200", title="NVIDIA H200", hbm_bytes=150_754_820_096.0, bandwidth=4800e9,
       link_bandwidth=450e9, **_HOPPER),
  _gpu("a100", title="NVIDIA A100-SXM4-80GB", hbm_bytes=85_094_825_984.0, bandwidth=2039e9,
       link_bandwidth=300e9, **_AMPERE),
)  # fmt: skip
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _TPUS + _GPUS}


@dataclasses.dataclass(frozen=True)
class Target:
  """A machine to compile for."""

  name: str
  chip: Chip
  devices: Sequence[jax.Device]  # they can be compiled for and hold nothing


def describe(name: str) -> Target:
  """The target of a name.

  Raises:
    ConfigError: the name says no chip or shape that there is, or what compiles for it is not installed.
  """
  found = re.fullmatch(r"(v\d\w*):(\d+(?:x\d+){1,2})", name)
  chip = CHIPS.get(found[1] if found else name)
  if chip is None or (chip.platform == "tpu") != bool(found):
    raise ConfigError(
      f"target {name!r}: there is no such target; give a TPU slice such as v5e:2x4, v5p:4x4x4 or v6e:8x8, "
      f"or one of {', '.join(chip.name for chip in _GPUS)}"
    )
  _require(name, chip)
  return Target(name, chip, _tpu_devices(name) if chip.platform == "tpu" else _gpu_devices(chip))


def is_installed(platform: str) -> bool:
  """Whether what compiles for 'tpu' or 'cuda' can be imported."""
  try:
    return importlib.util.find_spec({"tpu": "libtpu", "cuda": "jax_plugins.xla_cuda12"}[platform]) is not None
  except ModuleNotFoundError:  # of the package round it
    return False


def _require(name: str, chip: Chip) -> None:
  if not is_installed(chip.platform):
    package = {"tpu": "libtpu", "cuda": "jax-cuda12-plugin"}[chip.platform]
    raise ConfigError(
      f"target {name}: {package}, which compiles for it, is not installed; run "
      "`.venv/bin/python -m pip install -r requirements-plan.txt` (its header says what that brings)"
    )


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


def _gpu_devices(chip: Chip) -> Sequence[jax.Device]:
  jax.devices()  # finds and registers the plugins that are installed
  return topologies.get_topology_desc(
    "", platform="cuda", topology="1x1x1", target_config=chip.description
  ).devices
