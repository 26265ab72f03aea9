"""Environment of every test: eight fake CPU devices, no accelerator, a compilation cache.

Set before anything imports jax; subprocesses of tests inherit it.
"""

import importlib.metadata
import os
import pathlib
import sys

import pytest

if "jax" in sys.modules:
  raise RuntimeError(
    "jax was imported before tests/conftest.py; the tests need eight fake devices from the start"
  )

_ROOT = pathlib.Path(__file__).resolve().parent.parent

os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of the suite's time. At LLVM's level 0 it takes a third, without the MLIR emitters half of
# that again. What is computed is the same but for rounding; the demo, the benchmarks and the commands that
# tests/real_weights.py and tests/base_size.py run are compiled as users' programs are.
_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones end at a flag they do not know
  _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its notices bury a failed test's output


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
  """Drops a module's compiled programs when it ends; a worker that kept them all grew to 7 GB."""
  yield
  if "jax" in sys.modules:
    sys.modules["jax"].clear_caches()
