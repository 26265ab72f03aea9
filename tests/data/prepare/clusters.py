"""Servers of engines as processes of this machine: a Dask scheduler with workers, Beam's job service."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.data.conftest import ROOT

SECONDS = 120  # most that a start may take on a busy machine
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def prepare_command(*flags: str) -> list[str]:
  """Returns `python -m data.prepare` with flags."""
  return [sys.executable, "-m", "data.prepare", *flags]


def prepare(*flags: str, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
  """Runs `python -m data.prepare` to its end."""
  command = prepare_command(*flags)
  return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)


class Dask:
  """A scheduler and its workers, each a process with one thread."""

  def __init__(self, folder: pathlib.Path):
    self._file = folder / "scheduler.json"
    self._log = open(folder / "dask.log", "ab")  # noqa: SIM115 (closed by `end`)
    self._folder = folder
    self._scheduler = self._start("scheduler", "--port=0", "--host=127.0.0.1", "--no-dashboard")
    wait_for(self._file.is_file)
    self.workers: list[subprocess.Popen] = []

  @property
  def flags(self) -> list[str]:
    """The flags that prepare on these workers."""
    return ["--engine=beam", "--", "--runner=DaskRunner", f"--dask_scheduler_file={self._file}"]

  def add_worker(self, *flags: str) -> None:
    """Starts one more worker; flags are Dask's."""
    own = ["--nthreads=1", "--no-dashboard", f"--local-directory={self._folder}"]
    self.workers.append(self._start("worker", *own, *(flags or ["--no-nanny"])))

  def _start(self, kind: str, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "distributed.cli.dask_" + kind, f"--scheduler-file={self._file}", *flags]
    return subprocess.Popen(command, cwd=self._folder, env=ENVIRONMENT, stdout=self._log, stderr=self._log)

  def end(self) -> None:
    """Ends all processes."""
    for process in [*self.workers, self._scheduler]:
      process.terminate()  # a nanny ends its worker
      process.wait()
    self._log.close()


@contextlib.contextmanager
def dask(folder: pathlib.Path, workers: int) -> Iterator[Dask]:
  """Starts a scheduler with so many workers, which end with the block; `folder` gets their files."""
  folder.mkdir()
  cluster = Dask(folder)
  try:
    for _ in range(workers):
      cluster.add_worker()
    yield cluster
  finally:
    cluster.end()


@contextlib.contextmanager
def job_service() -> Iterator[list[str]]:
  """Starts Beam's own portable job service; yields the flags that prepare on it."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  module = "apache_beam.runners.portability.local_job_service_main"
  process = subprocess.Popen(
    [sys.executable, "-m", module, f"--port={port}"],
    env=ENVIRONMENT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )

  def is_open() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
      return True
    return False

  try:
    wait_for(is_open)
    endpoint = f"--job_endpoint=localhost:{port}"
    yield ["--engine=beam", "--", "--runner=PortableRunner", endpoint, "--environment_type=LOOPBACK"]
  finally:
    process.kill()
    process.wait()


def never_ends(path: str) -> None:
  """A part of a step that writes a file and then waits, until its process is killed."""
  pathlib.Path(path).touch()
  time.sleep(600)


def wait_for(is_there) -> None:
  """Returns once `is_there()` is true."""
  deadline = time.monotonic() + SECONDS
  while not is_there():
    assert time.monotonic() < deadline
    time.sleep(0.05)
