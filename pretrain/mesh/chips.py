"""Data sheets of accelerators, and the machines that `--plan=MACHINE` can name. Imports no jax.

TPU slices have Cloud TPU's names of shapes ('v5e:2x4', 'v5p:4x4x4', 'v6e:8x8'), GPUs a number ('h100:16',
8 in a node), and 'cpu:8' is this machine divided into 8 devices.
"""

import importlib.util
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from data.errors import ConfigError

GPUS_OF_A_NODE = 8
_GIB = float(1 << 30)

# Dense bfloat16 peak per device in FLOP/s (V100: float16, because it has no bfloat16), from data sheets,
# where numbers with sparsity are twice as high. By pattern of JAX's `device_kind`; the first match counts.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
  (r"H200", 989e12),
  (r"H100 PCIe", 756e12),
  (r"H100 NVL", 835e12),
  (r"H100", 989e12),
  (r"A100", 312e12),
  (r"V100", 125e12),
  (r"TPU v6", 918e12),
  (r"TPU v5( lite|e)", 197e12),
  (r"TPU v5", 459e12),  # v5p's device_kind is 'TPU v5p' or 'TPU v5'
  (r"TPU v4", 275e12),
)


def peak_flops(device_kind: str) -> float | None:
  """Returns the peak of one device in FLOP/s; None for unlisted kinds such as CPUs, which have no MFU."""
  return next((peak for pattern, peak in PEAK_FLOPS if re.search(pattern, device_kind)), None)


class Chip(NamedTuple):
  """One kind of device."""

  kind: str  # JAX's `device_kind`
  hbm_bytes: float
  platform: str = "tpu"
  description: str = ""  # a GpuTargetConfigProto in text form


def _gpu(kind: str, hbm_bytes: float, *facts: float) -> Chip:
  """Returns a GPU; its facts are in the units of XLA's description, in the order of the next line."""
  bandwidth, capability, cores, units, shared, l2, clock = facts
  description = f"""
    gpu_device_info {{
      threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
      shared_memory_per_block: 49152 shared_memory_per_core: {shared + 1024}
      shared_memory_per_block_optin: {shared}
      core_count: {cores} fpus_per_core: {units}
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: {bandwidth} l2_cache_size: {l2} clock_rate_ghz: {clock}
      device_memory_size: {hbm_bytes:.0f}
      cuda_compute_capability {{ major: {capability} minor: 0 }}
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
    }}
    platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
    device_description_str: "{kind}"
  """
  return Chip(kind, hbm_bytes, "cuda", description)


# TPUs: cloud.google.com/tpu/docs/{v5e,v5p,v6e}. GPUs: NVIDIA's data sheets of the SXM boards, and properties
# reported by CUDA.
_HOPPER, _AMPERE = (9, 132, 128, 232_448, 52_428_800, 1.98), (8, 108, 64, 166_912, 41_943_040, 1.41)
CHIPS: Mapping[str, Chip] = {
  "v5e": Chip("TPU v5 lite", 16 * _GIB),
  "v5p": Chip("TPU v5", 95 * _GIB),
  "v6e": Chip("TPU v6 lite", 32 * _GIB),
  "h100": _gpu("NVIDIA H100 80GB HBM3", 84_942_979_072.0, 3_352_000_000_000, *_HOPPER),
  "h200": _gpu("NVIDIA H200", 150_754_820_096.0, 4_800_000_000_000, *_HOPPER),
  "a100": _gpu("NVIDIA A100-SXM4-80GB", 85_094_825_984.0, 2_039_000_000_000, *_AMPERE),
}


class Machine(NamedTuple):
  """A machine that --plan can name: its kind of chip and its number of devices."""

  name: str
  chip: Chip
  size: int


def parse(name: str) -> Machine:
  """Parses a machine's name: 'v5e:2x4', 'h100' (one), 'h100:16', 'cpu:8'.

  Raises:
    ConfigError: the machine is unknown; the message lists the known ones.
  """
  chip_name, colon, size = name.partition(":")
  chip, count = CHIPS.get(chip_name), 0
  if chip and chip.platform == "tpu":
    axes = 3 if chip_name == "v5p" else 2
    sides = [int(side) for side in size.split("x")] if re.fullmatch(r"\d{1,3}(x\d{1,3})+", size) else []
    if len(sides) == axes and sides[0] % 2 == sides[1] % 2 == 0:  # a host has 2 x 2 chips
      count = sides[0] * sides[1] * (sides[2] if axes == 3 else 1)
  elif re.fullmatch(r"\d{1,5}", size if colon else "1"):
    count = int(size or 1)
    if chip_name == "cpu" and count:
      memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
      chip = Chip("cpu", memory / count, "cpu")
    elif count > GPUS_OF_A_NODE and count % GPUS_OF_A_NODE:
      count = 0
  if chip is None or not count:
    raise ConfigError(
      f"{name!r} is not a known machine; expected v5e:AxB or v6e:AxB (2x2 2x4 4x4 4x8 8x8 8x16 "
      "16x16), v5p:AxBxC (2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 and larger), h100:N, h200:N or a100:N (1 to 8, or "
      "nodes of 8), cpu:N"
    )
  return Machine(name, chip, count)


def is_installed(platform: str) -> bool:
  """Returns whether the compiler for 'tpu', 'cuda' or 'cpu' is installed."""
  modules = {"tpu": "libtpu", "cuda": "jax_plugins.xla_cuda12", "cpu": "jaxlib"}
  try:
    return importlib.util.find_spec(modules[platform]) is not None
  except ModuleNotFoundError:  # its parent package is missing
    return False
