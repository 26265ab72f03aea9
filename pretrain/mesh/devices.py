"""The devices a command computes on: found, or refused in one line; never another kind than was asked for."""

import contextlib
import glob
import logging
import os
from collections.abc import Callable, Iterator

import jax
from ml_collections import ConfigDict, FrozenConfigDict

from data import errors
from data.errors import ConfigError

logger = logging.getLogger(__name__)

# Where the driver of an accelerator shows itself, what it is, and what JAX needs to use it.
_DRIVERS = (
  ("/dev/nvidia[0-9]*", "an NVIDIA GPU", "requirements-gpu.txt"),
  ("/dev/accel[0-9]*", "a TPU", "requirements-tpu.txt"),
)


def start(platform: str = "auto", *, cache: bool = True) -> None:
  """Starts the devices of a command, see `check`; with `cache` a restart compiles only what is new.

  A place for compiled programs that the user chose stands.
  """
  check(platform)
  if platform == "auto" and jax.default_backend() == "cpu" and os.environ.get("JAX_PLATFORMS") != "cpu":
    for pattern, what, requirements in _DRIVERS:
      if glob.glob(pattern):
        logger.warning(
          f"{what} is here and JAX does not use it: training on the CPU; install {requirements}, or say that "
          "it is meant with --config.train.platform=cpu"
        )
  if cache and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    place = os.path.join(os.path.expanduser("~"), ".cache", "text_encoder_pretraining", "jax")
    jax.config.update("jax_compilation_cache_dir", place)


def check(platform: str = "auto") -> None:
  """Starts JAX's devices, which must be of `platform`: 'cpu', 'gpu', 'tpu' or 'auto', whatever JAX finds.

  ConfigError: what JAX_PLATFORMS names cannot be started, or the devices are of another platform.
  """
  try:
    kind = jax.default_backend()
  except (RuntimeError, AssertionError) as error:  # jax's own checks of a plugin are assertions
    asked = os.environ.get("JAX_PLATFORMS", "")
    reason = errors.reason(error) or "nothing of that kind was found on this machine"
    raise ConfigError(
      f"JAX cannot start a device (JAX_PLATFORMS={asked!r}: {reason}); unset it to use what there is, or set "
      "it to cpu"
    ) from error
  if platform not in ("auto", kind):
    raise ConfigError(
      f"train.platform={platform}: JAX found {jax.device_count()} x {kind} here; check the driver and that "
      f"requirements-gpu.txt or requirements-tpu.txt is installed, or use --config.train.platform={kind}"
    )


@contextlib.contextmanager
def memory_errors(line: Callable[[str], str]) -> Iterator[None]:
  """Raises a ConfigError where the block runs out of memory; other errors pass.

  `line` makes the message of the short reason that the device gives, or Python.
  """
  try:
    yield
  except (jax.errors.JaxRuntimeError, MemoryError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise ConfigError(line(errors.reason(error)[:200])) from error


def enough_memory(config: ConfigDict | FrozenConfigDict) -> contextlib.AbstractContextManager[None]:
  """`memory_errors` of the run of a config, with the fields that decide; what it has saved stays as it is."""
  settings = config.train
  return memory_errors(
    lambda reason: (
      f"out of memory ({reason}): train.batch_size={settings.batch_size} rows in "
      f"train.microbatches={settings.microbatches} on {jax.device_count()} devices; give more microbatches "
      "or cut weights with mesh.fsdp; --dry_run says what they need; the newest checkpoint is whole"
    )
  )
