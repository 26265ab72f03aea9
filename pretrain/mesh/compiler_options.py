"""The table of compiler options of a training step, besides XLA's defaults.

docs/lab/performance.md has the gain of each option, and options that were tried without a gain.
"""

import os
import re
from collections.abc import Mapping

# A fusion may use 32 MiB of VMEM instead of 16, for larger tiles. Older TPUs do not have so much.
_LARGER_TILES = {"xla_tpu_scoped_vmem_limit_kib": 32_768}
# Products by cuBLAS only, which adds biases and residuals itself. Otherwise XLA replaces a few products by
# its own kernels and loses those additions: 28.2 instead of 27.4 ms per masked-LM step on an H200.
_LIBRARY_PRODUCTS = {"xla_gpu_enable_triton_gemm": False}
_HOPPER = "Hopper"  # H100, H200 and GH200 in all their forms
# {JAX's `device_kind`: {option of XLA's compiler: value}}
_TABLE: Mapping[str, Mapping[str, bool | int]] = {
  _HOPPER: _LIBRARY_PRODUCTS,
  "TPU v5 lite": _LARGER_TILES,
  "TPU v5": _LARGER_TILES,
  "TPU v6 lite": _LARGER_TILES,
}
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # where users set such options


def compiler_options(device_kind: str) -> dict[str, bool | int]:
  """Returns XLA's options for a step on a kind of device, without those that the environment sets."""
  given = re.findall(r"--(\w+)", " ".join(os.environ.get(name, "") for name in _VARIABLES))
  kind = _HOPPER if re.search(r"\bG?H[12]00\b", device_kind) else device_kind
  return {name: value for name, value in _TABLE.get(kind, {}).items() if name not in given}
