"""Environment of every test: eight fake CPU devices, no accelerator, a compilation cache.

Set before anything imports jax; subprocesses of tests inherit it.
"""

import os
import pathlib
import sys

if "jax" in sys.modules:
  raise RuntimeError(
    "jax was imported before tests/conftest.py; the tests need eight fake devices from the start"
  )

_ROOT = pathlib.Path(__file__).resolve().parent.parent

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
  f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its notices bury a failed test's output
