"""Programs that prepare beside each other and measure one at a time, until a deadline.

A program prints JSON objects, each on a line: {"ready": true} when it waits for its turn on stdin, {"done":
true} when it has measured, all others are results. While one measures, all others are stopped by SIGSTOP:
compilers try kernels on the same GPU. A program that never asks for a turn just prints results.
"""

import contextlib
import json
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from lab.speed.gpu_cases import Case

ROOT = pathlib.Path(__file__).resolve().parents[2]
TURN_SECONDS = 150.0  # a case that measures longer is killed: the others have nothing meanwhile
GRACE_SECONDS = 1.0  # from SIGTERM to SIGKILL


def say(**line: Any) -> None:
  """Prints a result; what a case's program calls."""
  from lab.speed import cases  # imports JAX, which the program that gives turns must not need

  print(json.dumps(cases.rounded(line)), flush=True)


def wait_for_turn() -> None:
  """Returns when no other case works; ends the program if nobody gives turns any more."""
  print(json.dumps({"ready": True}), flush=True)
  if not sys.stdin.readline():
    sys.exit("error: the program that gives turns has ended")


class Child:
  """The process of a case, with a session and a process group of its own."""

  def __init__(self, case: Case, command_line: list[str], environment: dict[str, str], folder: str) -> None:
    """Starts it; stderr goes to a file in `folder`."""
    self.case, self.state, self.since = case, "preparing", time.monotonic()
    self.log = pathlib.Path(folder) / f"{case.name}.log"
    self._rest = b""
    with self.log.open("ab") as stderr:  # lines of stdout are appended too
      self.process = subprocess.Popen(
        command_line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
      )
    assert self.process.stdout is not None
    os.set_blocking(self.process.stdout.fileno(), False)

  def read(self) -> list[str]:
    """Whole lines that it has printed since."""
    assert self.process.stdout is not None
    *lines, self._rest = (self._rest + (self.process.stdout.read() or b"")).split(b"\n")
    return [line.decode("utf-8", "replace") for line in lines]

  def signal(self, number: int) -> None:
    """Sends a signal to the process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self.process.pid, number)

  def begin(self) -> None:
    """Lets it measure."""
    self.state, self.since = "measuring", time.monotonic()
    assert self.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.write(b"go\n")
      self.process.stdin.flush()

  def reason(self) -> str:
    """The last line of stderr that says something, at most 300 characters."""
    lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line.strip() for line in lines if line.strip() and not line.startswith(" ")]
    errors = [line for line in lines if re.search(r"Error|error:|^F\d{4} ", line)]  # F: XLA aborts
    return ([f"exit code {self.process.returncode}"] + lines + errors[-1:])[-1][:300]


class Day:
  """All cases until the deadline."""

  def __init__(
    self,
    cases: list[Case],
    output: pathlib.Path,
    program: Callable[[Case], list[str]],
    *,
    deadline: float,
    workers: int,
  ) -> None:
    """Nothing is started yet.

    Args:
      program: the command line of a case.
      deadline: when everything is killed, on the clock `time.monotonic`.
      workers: processes alive at once.
    """
    self.cases, self.queue, self.output, self.program = cases, list(cases), output, program
    self.deadline, self.workers = deadline, workers
    self.alive: list[Child] = []
    self.lines: list[dict[str, Any]] = []
    self._temporary = tempfile.TemporaryDirectory(prefix="gpu_day_", ignore_cleanup_errors=True)
    self.folder = self._temporary.name
    self.is_stopping = False
    self.started = time.monotonic()
    self._selector = selectors.DefaultSelector()
    self._retried: set[str] = set()
    self._file = (output / "lines.jsonl").open("a", encoding="utf-8")

  def environment(self, case: Case) -> dict[str, str]:
    """Returns the environment of a case's process; JAX must not reserve memory, which all cases share."""
    own = os.path.join(self.folder, case.name)
    flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS", ""), case.flags]))
    changes = {
      "JAX_PLATFORMS": "cpu" if case.kind == "peer" else case.platforms,  # a peer's JAX makes its config only
      "XLA_FLAGS": flags,
      "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
      "TF_CPP_MIN_LOG_LEVEL": "2",
      "GPU_DAY_FOLDER": own,
      "TORCHINDUCTOR_CACHE_DIR": os.path.join(own, "inductor"),  # a shared one has locks of stopped processes
      "TORCHINDUCTOR_COMPILE_THREADS": "4",
      "PYTHONDONTWRITEBYTECODE": "1",
    }
    if case.is_tiny:  # inductor's C++ takes a minute for each peer
      changes |= {
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": os.environ.get("TORCHDYNAMO_DISABLE", "1"),
      }
    return os.environ | changes

  def add(self, name: str, line: dict[str, Any]) -> None:
    """Keeps a line of a case; it is on disk when this returns."""
    line = {"case": name, "at_seconds": round(time.monotonic() - self.started, 1)} | line
    self.lines.append(line)
    self._file.write(json.dumps(line) + "\n")
    self._file.flush()
    os.fsync(self._file.fileno())
    print(json.dumps({key: value for key, value in line.items() if key != "kernels"}), flush=True)

  def run(self) -> None:
    """Runs the cases; returns when all have ended, at the deadline, or soon after `is_stopping`."""
    try:
      while (self.queue or self.alive) and not self.is_stopping and time.monotonic() < self.deadline:
        self._start()
        self._give_turn()
        left = max(0.0, self.deadline - time.monotonic())
        for key, _ in self._selector.select(min(0.2, left)):
          self._read(key.data)
        self._collect()
    finally:
      self._end()

  def _measuring(self) -> Child | None:
    return next((child for child in self.alive if child.state == "measuring"), None)

  def _start(self) -> None:
    while self.queue and len(self.alive) < self.workers and self._measuring() is None:
      case = self.queue.pop(0)
      child = Child(case, self.program(case), self.environment(case), self.folder)
      self.alive.append(child)
      self._selector.register(child.process.stdout, selectors.EVENT_READ, child)

  def _give_turn(self) -> None:
    ready = [child for child in self.alive if child.state == "ready"]
    if self._measuring() is None and ready:
      order = [case.name for case in self.cases]
      chosen = min(ready, key=lambda child: order.index(child.case.name))
      for child in self.alive:
        if child is not chosen:
          child.signal(signal.SIGSTOP)
      chosen.begin()

  def _end_turn(self, child: Child) -> None:
    if child.state == "measuring":
      child.state = "done"
      for other in self.alive:
        other.signal(signal.SIGCONT)

  def _read(self, child: Child) -> None:
    for text in child.read():
      try:
        line = json.loads(text) if text.startswith("{") else None
      except ValueError:
        line = None
      if line is None:
        with child.log.open("a", encoding="utf-8") as log:
          log.write(text + "\n")
      elif "ready" in line:
        child.state = "ready"
      elif "done" in line:
        self._end_turn(child)
      else:
        self.add(child.case.name, line)

  def _collect(self) -> None:
    """Takes leave of children that have ended, and kills one whose turn takes too long."""
    for child in list(self.alive):
      hangs = child.state == "measuring" and time.monotonic() - child.since > TURN_SECONDS
      if hangs:
        child.signal(signal.SIGKILL)
        child.process.wait()
      if child.process.poll() is None:
        continue
      self._read(child)
      state, name = child.state, child.case.name
      self._end_turn(child)
      self._leave(child)
      reason = f"still measuring after {TURN_SECONDS:.0f} s" if hangs else child.reason()
      is_memory = "RESOURCE_EXHAUSTED" in reason or "out of memory" in reason.lower()
      if child.process.returncode and is_memory and state == "preparing" and name not in self._retried:
        # The others held the memory: once more when they have ended.
        self._retried.add(name)
        self.queue.append(child.case)
      elif child.process.returncode:
        self.add(name, {"error": reason})

  def _leave(self, child: Child) -> None:
    """Forgets a child that has ended; its log goes to the log of all."""
    child.signal(signal.SIGKILL)  # what it started and left behind
    self._selector.unregister(child.process.stdout)
    self.alive.remove(child)
    text = child.log.read_text(encoding="utf-8", errors="replace")
    with (self.output / "log.txt").open("a", encoding="utf-8") as log:
      log.write(f"=== {child.case.name}, exit code {child.process.returncode}\n{text[-200_000:]}\n")

  def _end(self) -> None:
    """Kills what is alive, also what is stopped, and names what has no line."""
    children = list(self.alive)
    for number in (signal.SIGCONT, signal.SIGTERM):
      for child in children:
        child.signal(number)
    until = time.monotonic() + GRACE_SECONDS
    while any(child.process.poll() is None for child in children) and time.monotonic() < until:
      time.sleep(0.02)
    for child in children:
      child.signal(signal.SIGKILL)
      with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(timeout=GRACE_SECONDS)
      self._read(child)
      self._leave(child)
    ended = {child.case.name: child.state for child in children if child.state != "done"}
    for case in self.cases:
      if case.name in ended or case in self.queue:
        self.add(case.name, {"missing": f"the time was over: {ended.get(case.name, 'not started')}"})
    self._file.close()
    self._temporary.cleanup()
