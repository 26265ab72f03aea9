"""Starts the devices that a command computes on, and has the compiler's options for them."""

import contextlib
import glob
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping

import jax

from data import errors
from data.errors import ConfigError

logger = logging.getLogger(__name__)

# (device file of an accelerator's driver, what it is, requirements file for JAX)
_DRIVERS = (
  ("/dev/nvidia[0-9]*", "an NVIDIA GPU", "requirements-gpu.txt"),
  ("/dev/accel[0-9]*", "a TPU", "requirements-tpu.txt"),
)

# A fusion may use 32 MiB of VMEM instead of 16, for larger tiles. Older TPUs do not have so much.
_LARGER_TILES = {"xla_tpu_scoped_vmem_limit_kib": 32_768}
# Products by cuBLAS only, which adds biases and residuals itself. Otherwise XLA replaces a few products by
# its own kernels and loses those additions: 28.2 instead of 27.4 ms per masked-LM step on an H200.
_LIBRARY_PRODUCTS = {"xla_gpu_enable_triton_gemm": False}
_HOPPER = "Hopper"  # H100, H200 and GH200 in all their forms
# Options of a training step besides XLA's defaults: {JAX's `device_kind`: {option: value}}. Their gains, and
# options that were tried without a gain, are in docs/lab/performance.md.
_TABLE: Mapping[str, Mapping[str, bool | int]] = {
  _HOPPER: _LIBRARY_PRODUCTS,
  "TPU v5 lite": _LARGER_TILES,
  "TPU v5": _LARGER_TILES,
  "TPU v6 lite": _LARGER_TILES,
}
# A libtpu on a machine without chips, where it compiles for others, looks for a pod and writes errors.
_NO_POD = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_ACCELERATOR_TYPE": "v5e-1",
}
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")  # where users set such options


def start(platform: str = "auto", *, cache: bool = True) -> None:
  """Starts the devices of a command, see `check`; with `cache`, compiled programs are cached on disk.

  A cache folder that the user has set is not changed.
  """
  check(platform)
  if platform == "auto" and jax.default_backend() == "cpu" and os.environ.get("JAX_PLATFORMS") != "cpu":
    for pattern, what, requirements in _DRIVERS:
      if glob.glob(pattern):
        logger.warning(
          f"{what} is installed, but JAX does not use it and computes on the CPU; install {requirements}, or "
          "choose the CPU\n  export JAX_PLATFORMS=cpu"
        )
  if cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    place = os.path.join(os.path.expanduser("~"), ".cache", "text_encoder_pretraining", "jax")
    jax.config.update("jax_compilation_cache_dir", place)


def check(platform: str = "auto") -> None:
  """Starts JAX's devices; `platform` is 'cpu', 'gpu', 'tpu', or 'auto' for any.

  ConfigError: the platform in JAX_PLATFORMS cannot start, or the devices are of another platform.
  """
  if not (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/*")):  # no TPU
    for name, value in _NO_POD.items():
      os.environ.setdefault(name, value)
  try:
    kind = jax.default_backend()
  except (RuntimeError, AssertionError) as error:  # JAX checks plugins by assertions
    asked = os.environ.get("JAX_PLATFORMS", "")
    reason = errors.reason(error) or "no such device was found on this machine"
    raise ConfigError(
      f"JAX cannot start a device (JAX_PLATFORMS={asked!r}: {reason}); first run one of\n"
      "  unset JAX_PLATFORMS\n  export JAX_PLATFORMS=cpu"
    ) from error
  if platform not in ("auto", kind):
    raise ConfigError(
      f"train.platform={platform}: JAX found {jax.device_count()} x {kind}; check the driver and that "
      "requirements-gpu.txt or requirements-tpu.txt is installed, or use\n"
      f"  --config.train.platform={kind}"
    )


@contextlib.contextmanager
def memory_errors(line: Callable[[str], str]) -> Iterator[None]:
  """Turns an out-of-memory error in the block into a ConfigError; other errors pass.

  `line` makes the message from the short reason of the device or of Python.
  """
  try:
    yield
  except (jax.errors.JaxRuntimeError, MemoryError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise ConfigError(line(errors.reason(error)[:200])) from error


def enough_memory(batch_size: int, microbatches: int) -> contextlib.AbstractContextManager[None]:
  """Turns an out-of-memory error in the block into a ConfigError that lists the fields to change."""

  def line(reason: str) -> str:
    count = jax.device_count()
    more = (parts for parts in range(microbatches + 1, batch_size + 1) if batch_size % (parts * count) == 0)
    ways = [f"--config.train.microbatches={parts}" for parts in itertools.islice(more, 1)]
    ways += ["--config.mesh.fsdp=-1 --config.mesh.data=1  # shards weights"] * (count > 1)
    return "\n  ".join(
      [
        f"out of memory: train.batch_size={batch_size} rows in train.microbatches={microbatches} on "
        f"{count} devices; the newest checkpoint, if there is one, is complete ({reason})",
        *ways,
        "--dry_run  # estimates the memory",
      ]
    )

  return memory_errors(line)


def compiler_options(device_kind: str) -> dict[str, bool | int]:
  """Returns XLA's options for a step on a kind of device, without those that the environment sets."""
  given = re.findall(r"--(\w+)", " ".join(os.environ.get(name, "") for name in _VARIABLES))
  kind = _HOPPER if re.search(r"\bG?H[12]00\b", device_kind) else device_kind
  return {name: value for name, value in _TABLE.get(kind, {}).items() if name not in given}
