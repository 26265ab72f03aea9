"""Environment of every test: eight fake CPU devices, no accelerator, a compilation cache.

Set before anything imports jax; subprocesses of tests inherit it.
"""

import gc
import importlib.metadata
import os
import pathlib
import signal
import sys

import pytest

if "jax" in sys.modules:
  raise RuntimeError(
    "jax was imported before tests/conftest.py; the tests need eight fake devices from the start"
  )

# A shell starts background commands with Ctrl-C ignored; tests send it, and their children inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# The files that take longest on two workers, longest first. They start first, so that no worker is left with
# one of them when the other has nothing to do any more; all other files follow as they are collected.
_LONGEST = (
  "faults/test_faults.py",
  "pretrain/test_sharded.py",
  "pretrain/pod/test_two_processes.py",
  "test_goldens.py",
  "finetune/test_main.py",
  "pretrain/export/test_export.py",
  "pretrain/test_recipe.py",
  "pretrain/test_field_sensitivity.py",
  "old_version/test_old_version.py",
  "pretrain/test_train.py",
  "pretrain/test_main.py",
  "finetune/test_field_sensitivity.py",
  "pretrain/export/test_fine_tuned.py",
  "pretrain/test_recipe_gradients.py",
  "finetune/search/test_program.py",
  "pretrain/models/test_encoder.py",
  "pretrain/models/test_last_layer.py",
  "pretrain/test_vocabulary_memory.py",
  "configs/test_ablation_training.py",
  "test_docs.py",
  "finetune/search/test_driver.py",
  "pretrain/demo/test_demo.py",
  "pretrain/test_evaluate.py",
  "pretrain/checkpoints/test_resume.py",
  "pretrain/corruption/test_generator.py",
  "finetune/prompt/test_search.py",
  "pretrain/mesh/test_collectives.py",
  "data/test_seqio_tasks.py",
)

os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of the suite's time. At LLVM's level 0 it takes a third, without the MLIR emitters half of
# that again, and as one LLVM module instead of 32 another 6 % less. What is computed is the same but for
# rounding; the demo, the benchmarks and the commands that tests/real_weights.py and tests/base_size.py run
# are compiled as users' programs are.
_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones end at a flag they do not know
  _FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its notices bury a failed test's output

# A hundred tests start a command of ours: its modules are made bytecode once, whatever the shell asks for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tracing makes so many objects that at Python's own thresholds a collection runs every few milliseconds, and
# finds little: a quarter of the time of a trace.
gc.set_threshold(50_000, 20, 5)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Brings the files of `_LONGEST` to the front; the order within a file stays."""
  tests = _ROOT / "tests"
  missing = [name for name in _LONGEST if not (tests / name).is_file()]
  if missing:
    raise pytest.UsageError(f"tests/conftest.py: _LONGEST names files that are not there: {missing}")
  ranks = {tests / name: rank for rank, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
  """Drops a module's compiled programs when it ends; a worker that kept them all grew to 7 GB."""
  yield
  if "jax" in sys.modules:
    sys.modules["jax"].clear_caches()


@pytest.fixture
def here(tmp_path: pathlib.Path):
  """A machine of buckets with an empty cache."""
  from tests import buckets

  with buckets.machine(tmp_path / "cache"):
    yield tmp_path


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch):
  """Names of the files that were fetched from buckets."""
  from tests import buckets

  return buckets.noted(monkeypatch)
