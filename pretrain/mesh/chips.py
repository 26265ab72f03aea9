"""Machines that a plan can be made for, by name, with data from their vendors. Imports no jax.

TPU slices have Cloud TPU's names of shapes ('v5e:2x4', 'v5p:4x4x4', 'v6e:8x8'), GPUs a number ('h100:16',
8 in a node), and 'cpu:8' is this machine divided into 8 devices.
"""

import dataclasses
import importlib.util
import re
from collections.abc import Mapping

from data.errors import ConfigError

GPUS_OF_A_NODE = 8
MOST_CPUS = 512  # fake devices on one machine

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
  for pattern, peak in PEAK_FLOPS:
    if re.search(pattern, device_kind):
      return peak
  return None


@dataclasses.dataclass(frozen=True)
class Chip:
  """Facts about one kind of device, from its vendor's data sheet or measured.

  Attributes:
    name: its name in --plan.
    kind: JAX's `device_kind`.
    hbm_bytes: memory of one device.
    bandwidth: of that memory, bytes/s.
    link_bandwidth: to other chips of a slice or GPUs of a node, bytes/s, all links together, one way.
    network_bandwidth: of one GPU to other nodes, bytes/s, one way; 0: no network.
    clock: of the matrix units in Hz, which converts estimated cycles to seconds; 0: no estimates.
    platform: name in `jax.experimental.topologies`.
    description: XLA's description of a GPU, a GpuTargetConfigProto in text form.
    product_share, bandwidth_share: shares of those numbers that large products and copies reach: 790 of 989
      TFLOP/s and 4.3 of 4.8 TB/s were measured on an H200.
    wide_share: of the bfloat16 rate, for products with a float32 operand (TF32's).
    launch_seconds: of a kernel with almost nothing to do.
    measured_flops: of float32 products, for CPUs, which have no data sheet here.
  """

  name: str
  kind: str
  hbm_bytes: float
  bandwidth: float
  link_bandwidth: float
  network_bandwidth: float = 0.0
  clock: float = 0.0
  platform: str = "tpu"
  description: str = ""
  product_share: float = 0.8
  bandwidth_share: float = 0.9
  wide_share: float = 0.5
  launch_seconds: float = 3e-6
  measured_flops: float = 0.0

  @property
  def peak_flops(self) -> float:
    """Dense bfloat16 FLOP/s of one device, or a CPU's measured float32 rate."""
    peak = self.measured_flops or peak_flops(self.kind)
    assert peak, self.kind
    return peak


# cloud.google.com/tpu/docs/{v5e,v5p,v6e}. Clocks follow from the peaks: matrix units x their size^2 x 2 x
# clock, with 4 x 128^2 (v5e), 8 x 128^2 (v5p) and 4 x 256^2 (v6e).
_GIB = float(1 << 30)
_TPUS = (
  Chip("v5e", "TPU v5 lite", 16 * _GIB, 819e9, 200e9, clock=1.5e9),
  Chip("v5p", "TPU v5", 95 * _GIB, 2765e9, 600e9, clock=1.75e9),
  Chip("v6e", "TPU v6 lite", 32 * _GIB, 1638e9, 448e9, clock=1.75e9),
)
_FLAT_SHAPES = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")  # of v5e and v6e


def _gpu(
  name: str, *, title: str, cores: int, capability: int, shared: int, l2: int, clock: float, **facts
) -> Chip:
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


# NVIDIA's data sheets of the SXM boards, and properties reported by CUDA. Networks as in DGX systems, with
# one port for each GPU: 400 Gbit/s (H100, H200), 200 Gbit/s (A100).
_HOPPER = {"cores": 132, "capability": 9, "shared": 232_448, "l2": 52_428_800, "clock": 1.98}
_AMPERE = {"cores": 108, "capability": 8, "shared": 166_912, "l2": 41_943_040, "clock": 1.41}
_GPUS = (
  _gpu("h100", title="NVIDIA H100 80GB HBM3", hbm_bytes=84_942_979_072.0, bandwidth=3352e9,
       link_bandwidth=450e9, network_bandwidth=50e9, **_HOPPER),
  _gpu("h200", title="NVIDIA H200", hbm_bytes=150_754_820_096.0, bandwidth=4800e9,
       link_bandwidth=450e9, network_bandwidth=50e9, **_HOPPER),
  _gpu("a100", title="NVIDIA A100-SXM4-80GB", hbm_bytes=85_094_825_984.0, bandwidth=2039e9,
       link_bandwidth=300e9, network_bandwidth=25e9, **_AMPERE),
)  # fmt: skip
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _TPUS + _GPUS}
KNOWN = (
  f"v5e:SHAPE and v6e:SHAPE ({' '.join(_FLAT_SHAPES)}), v5p:AxBxC (2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 and "
  f"multiples of 4), {', '.join(chip.name + ':N' for chip in _GPUS)} (1 to {GPUS_OF_A_NODE}, or "
  f"nodes of {GPUS_OF_A_NODE}), cpu:N (up to {MOST_CPUS})"
)


@dataclasses.dataclass(frozen=True)
class Spec:
  """A machine that --plan can name: its platform, kind of chip, and number of devices."""

  name: str
  platform: str  # 'tpu', 'cuda' or 'cpu'
  chip: Chip | None  # None: a CPU, which has no data sheet here
  devices: int


def parse(name: str) -> Spec:
  """Parses a machine's name: 'v5e:2x4', 'h100' (one), 'h100:16', 'cpu:8'.

  Raises:
    ConfigError: the machine is unknown; the message lists the known ones.
  """
  chip_name, colon, size = name.partition(":")
  chip, count = CHIPS.get(chip_name), 0
  platform = chip.platform if chip else "cpu" if chip_name == "cpu" else ""
  if platform == "tpu":
    sides = [int(side) for side in size.split("x")] if re.fullmatch(r"\d{1,3}(x\d{1,3}){1,2}", size) else []
    count = _chips_of(chip_name, sides)
  elif platform and re.fullmatch(r"\d{1,5}", size if colon else "1"):
    count = int(size or 1)
    whole_nodes = count <= GPUS_OF_A_NODE or count % GPUS_OF_A_NODE == 0
    count *= whole_nodes if platform == "cuda" else count <= MOST_CPUS
  if not count:
    raise ConfigError(f"{name!r} is not a known machine; expected {KNOWN}")
  return Spec(name, platform, chip, count)


def _chips_of(chip: str, sides: list[int]) -> int:
  """Returns the number of chips in a TPU slice of a shape; 0 if the shape does not exist."""
  if chip != "v5p":
    return sides[0] * sides[1] if "x".join(map(str, sides)) in _FLAT_SHAPES else 0
  small = ([2, 2, 1], [2, 2, 2], [2, 2, 4], [2, 4, 4])
  if len(sides) != 3 or not (sides in small or all(side and side % 4 == 0 for side in sides)):
    return 0
  return sides[0] * sides[1] * sides[2]


def is_installed(what: str) -> bool:
  """Returns whether the compiler for 'tpu', 'cuda' or 'cpu', or 'cudnn', is installed."""
  modules = {"tpu": "libtpu", "cuda": "jax_plugins.xla_cuda12", "cpu": "jaxlib", "cudnn": "nvidia.cudnn"}
  try:
    return importlib.util.find_spec(modules[what]) is not None
  except ModuleNotFoundError:  # its parent package is missing
    return False
