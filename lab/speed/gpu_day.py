"""Measures correctness and speed on a GPU in limited time: checks, training steps, PyTorch's same work.

  python -m benchmarks.gpu_day --minutes=12 --output=DIR --goldens=GOLDENS
  python -m benchmarks.gpu_day --rehearse --minutes=8 --output=DIR  # tiny, on this machine's CPU
  python -m benchmarks.gpu_day --minutes=5 --output=DIR --only roberta_base peer_roberta_base

Every case, see `lab/speed/gpu_case.py`, is a process. Cases compile in parallel, but measure one at a time:
meanwhile all others are stopped, because compilers try kernels on the same GPU. Each result is appended to
`lines.jsonl` at once; after the last case, or when the time is over, `summary.md` has the tables. Other
output of a case is in `logs`. XLA_FLAGS of the environment apply to all cases.
Exit code 0: every check passed; 1: one failed or is missing.
"""

import concurrent.futures
import contextlib
import importlib.metadata
import json
import logging
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data import command
from data.errors import ConfigError
from lab.speed import gpu_summary
from lab.speed.gpu_case import Case, rehearsed, table

logger = logging.getLogger(__name__)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TURN_SECONDS = 150.0  # a case that measures longer is killed, because all others wait
PACKAGES = ("jax", "jaxlib", "flax", "triton", "jax-triton", "torch", "transformers", "nvidia-cudnn-cu13")
CARD = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,memory.total"


def machine() -> dict[str, Any]:
  """Returns the GPU and its state ('' without one), commit, date, CPU, and versions of packages."""
  card = ""
  with contextlib.suppress(OSError, subprocess.TimeoutExpired):
    query = ["nvidia-smi", f"--query-gpu={CARD}", "--format=csv,noheader"]
    card = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
  versions = {}
  for name in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return {
    "commit": command.commit() or "unknown",
    "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    "card": dict(zip(CARD.split(","), card.split(", "))) if card else "",
    "machine": f"{os.cpu_count()} x {platform.machine()}",
    "python": platform.python_version(),
    "versions": versions,
  }


class Day:
  """Runs measurements as processes that compile in parallel and measure one at a time; `stop` ends all.

  The process of a case prints one JSON object per line: {"ready": true} when it waits for its turn on stdin,
  {"done": true} at its end; all others are results. Checks need no turn.
  """

  def __init__(
    self, cases: Sequence[Case], output: pathlib.Path, program: Callable[[Case], list[str]], *, workers: int
  ) -> None:
    """Prepares to run `cases`, `workers` at once; `program` returns the command line of a case."""
    self.cases, self.output, self.program, self.workers = cases, output, program, workers
    self.lines: list[dict[str, Any]] = []
    self._alive: dict[str, subprocess.Popen] = {}
    self._turn = threading.Lock()  # held while a case measures; no case starts meanwhile
    self._writing = threading.Lock()
    self._is_stopping, self._started = False, time.monotonic()
    (output / "logs").mkdir(exist_ok=True)

  def run(self, *, seconds: float) -> None:
    """Runs the cases, and kills all of them after `seconds`."""
    deadline = threading.Timer(seconds, self.stop)
    deadline.start()
    try:
      with (
        tempfile.TemporaryDirectory(prefix="gpu_day_", ignore_cleanup_errors=True) as folder,
        concurrent.futures.ThreadPoolExecutor(self.workers) as threads,
      ):
        list(threads.map(lambda case: self._case(case, folder), self.cases))
    finally:
      deadline.cancel()

  def stop(self) -> None:
    """Kills all cases and starts no more."""
    self._is_stopping = True
    self._signal(signal.SIGKILL)

  def add(self, name: str, **line: Any) -> None:
    """Appends a result of a case to `lines.jsonl` and prints it; it is on disk when this returns."""
    line = {"case": name, "at_seconds": round(time.monotonic() - self._started, 1)} | line
    with self._writing, (self.output / "lines.jsonl").open("a", encoding="utf-8") as file:
      self.lines.append(line)
      file.write(json.dumps(line) + "\n")
      file.flush()
      os.fsync(file.fileno())
      print(json.dumps({key: value for key, value in line.items() if key != "kernels"}), flush=True)

  def _signal(self, number: int, *, but: str = "") -> None:
    for name, process in list(self._alive.items()):
      if name != but:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, number)

  def _case(self, case: Case, folder: str) -> None:
    """Runs a case's process and stores its results; if it did not finish, the last one has the reason."""
    log = self.output / "logs" / f"{case.name}.txt"
    with log.open("w", encoding="utf-8") as stderr:
      with self._turn:
        if self._is_stopping:
          self.add(case.name, missing="the time was over: not started")
          return
        process = self._alive[case.name] = subprocess.Popen(
          self.program(case),
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=stderr,
          text=True,
          env=self._environment(case, os.path.join(folder, case.name)),
          cwd=ROOT,
          start_new_session=True,
        )
        if self._is_stopping:  # `stop` was called between the check and the start
          self._signal(signal.SIGKILL)
      with contextlib.ExitStack() as turn:
        is_done, is_late = self._read(case, process, stderr, turn)
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its remaining children
      code = process.wait()
      del self._alive[case.name]
    if self._is_stopping and not is_done:
      self.add(case.name, missing="the time was over")
    elif is_late:
      self.add(case.name, error=f"still measuring after {TURN_SECONDS:.0f} s")
    elif code and not is_done:
      self.add(case.name, error=_reason(log, code))

  def _read(
    self, case: Case, process: subprocess.Popen, log, turn: contextlib.ExitStack
  ) -> tuple[bool, bool]:
    """Stores a case's results until it ends; returns whether it finished, and whether it took too long."""
    assert process.stdout is not None and process.stdin is not None
    late = threading.Event()
    for text in process.stdout:
      line = None
      with contextlib.suppress(ValueError):
        line = json.loads(text) if text.startswith("{") else None
      if line is None:
        log.write(text)
        log.flush()
      elif "ready" in line:
        turn.enter_context(self._turn)
        self._signal(signal.SIGSTOP, but=case.name)
        turn.callback(self._signal, signal.SIGCONT)
        limit = threading.Timer(TURN_SECONDS, lambda: (late.set(), os.killpg(process.pid, signal.SIGKILL)))
        limit.start()
        turn.callback(limit.cancel)
        with contextlib.suppress(BrokenPipeError):
          process.stdin.write("go\n")
          process.stdin.flush()
      elif "done" in line:
        return True, False
      else:
        self.add(case.name, **line)
    return False, late.is_set()

  def _environment(self, case: Case, own: str) -> dict[str, str]:
    """Returns the environment of a case; JAX must not preallocate memory, which all cases share."""
    changes = {
      "JAX_PLATFORMS": "cpu" if case.kind == "peer" else case.platforms,  # a peer's JAX makes its config only
      "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
      "TF_CPP_MIN_LOG_LEVEL": "2",
      "TORCHINDUCTOR_CACHE_DIR": own,  # not shared, because stopped processes hold its locks
      "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }
    if case.is_tiny:  # compiling inductor's C++ takes a minute per peer
      compiled = os.environ.get("TORCHDYNAMO_DISABLE", "1")
      changes |= {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": compiled}
    return os.environ | changes


def _reason(log: pathlib.Path, code: int) -> str:
  """Returns the last line with an error in a log, else the last line; at most 300 characters."""
  lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
  lines = [line.strip() for line in lines if line.strip() and not line.startswith(" ")]
  errors = [line for line in lines if re.search(r"Error|error:|^F\d{4} ", line)]  # F: XLA aborts
  return ([f"exit code {code}"] + lines + errors[-1:])[-1][:300]


def chosen(names: Sequence[str], *, is_tiny: bool) -> Iterator[Case]:
  """Yields the cases with these names, or all without names, in the table's order."""
  known = [case.name for case in table()]
  if wrong := [name for name in names if name not in known]:
    raise ConfigError(f"--only {' '.join(wrong)}: expected some of {', '.join(known)}")
  for case in table():
    if not names or case.name in names:
      yield rehearsed(case) if is_tiny else case


def main() -> int:
  """Runs the cases and prints the tables; returns the exit code."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--minutes", type=float, default=12.0, help="time after which everything is killed")
  parser.add_argument("--output", required=True, help="folder of results")
  parser.add_argument("--goldens", default="", help="folder of golden files")
  parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of cases")
  parser.add_argument("--rehearse", action="store_true", help="tiny cases on the CPU")
  parser.add_argument("--workers", type=int, default=0, help="processes alive at once; 0: half of the cores")
  asked = parser.parse_args()
  cases, output = list(chosen(asked.only, is_tiny=asked.rehearse)), pathlib.Path(asked.output)
  here = machine()
  if not here["card"] and not asked.rehearse:
    raise ConfigError("nvidia-smi finds no GPU here; to run tiny cases on this CPU, add --rehearse")
  output.mkdir(parents=True, exist_ok=True)

  def program(case: Case) -> list[str]:
    goldens = asked.goldens and os.path.abspath(asked.goldens)  # cases run in the repository's root
    flags = [case.name, f"--goldens={goldens}", *["--rehearse"] * asked.rehearse]
    return [sys.executable, "-m", f"benchmarks.{'gpu_checks' if case.is_check else 'gpu_case'}", *flags]

  workers = asked.workers or (2 if asked.rehearse else max(2, (os.cpu_count() or 2) // 2))
  day = Day(cases, output, program, workers=workers)
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: day.stop())
  day.add("machine", **here)
  day.run(seconds=60 * asked.minutes)
  text, failures = gpu_summary.summary(day.lines, cases)
  (output / "summary.md").write_text(text, encoding="utf-8")
  print(text)
  if left := [line["case"] for line in day.lines if "missing" in line]:
    logger.warning(f"without a result; add to the same command: --only {' '.join(left)}")
  if failures:
    logger.warning("correctness: " + "; ".join(failures))
  return 1 if failures else 0


if __name__ == "__main__":
  sys.exit(command.exit_code(main, stopped="stopped"))
