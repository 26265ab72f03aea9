"""Environment of every test: eight fake CPU devices, no accelerator, a compilation cache.

Set before anything imports jax; subprocesses of tests inherit it.
"""

import gc
import importlib.metadata
import json
import os
import pathlib
import signal
import sys

import psutil
import pytest

if "jax" in sys.modules:
  raise RuntimeError(
    "jax was imported before tests/conftest.py; the tests need eight fake devices from the start"
  )

# A shell starts background commands with Ctrl-C ignored; tests send it, and their children inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Seconds of each file in the last whole run of this checkout, else of the run that was committed: the longest
# start first, so that no worker is left with one of them when the other has nothing to do any more.
_MEASURED, _COMMITTED = _ROOT / ".cache" / "test_seconds.json", _ROOT / "tests" / "seconds.json"
_MOST_MEMORY = 2 << 30  # bytes of a worker above which compiled programs are dropped between files

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
# The tests' programs are small: JAX's own limits, a second and 64 KB, would keep few of them.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its notices bury a failed test's output

# A hundred tests start a command of ours: its modules are made bytecode once, whatever the shell asks for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tracing makes so many objects that at Python's own thresholds a collection runs every few milliseconds, and
# finds little: a quarter of the time of a trace.
gc.set_threshold(50_000, 20, 5)


class _Seconds:
  """Adds up the seconds of each file, of all workers, and keeps them for the order of the next run."""

  def __init__(self) -> None:
    self._of_file: dict[str, float] = {}

  def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
    file = report.nodeid.partition("::")[0]
    self._of_file[file] = self._of_file.get(file, 0.0) + report.duration

  def pytest_sessionfinish(self) -> None:
    seconds = {file: round(second, 1) for file, second in self._of_file.items()}
    _MEASURED.parent.mkdir(exist_ok=True)
    _MEASURED.write_text(json.dumps(seconds, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def _seconds() -> dict[str, float]:
  path = _MEASURED if _MEASURED.is_file() else _COMMITTED
  return json.loads(path.read_text(encoding="utf-8"))


def pytest_configure(config: pytest.Config) -> None:
  """Notes the seconds of a whole run, where the reports of all workers arrive."""
  if not hasattr(config, "workerinput") and not config.getoption("file_or_dir"):
    config.pluginmanager.register(_Seconds())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
  """Brings the longest files of a whole run to the front; the order within a file stays."""
  if config.getoption("file_or_dir"):
    return
  seconds = _seconds()
  items.sort(key=lambda item: -seconds.get(item.path.relative_to(_ROOT).as_posix(), 0.0))


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
  """Keeps the programs of a worker for its next files, until they take much memory."""
  yield
  if "jax" in sys.modules and psutil.Process().memory_info().rss > _MOST_MEMORY:
    sys.modules["jax"].clear_caches()
    gc.collect()


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
