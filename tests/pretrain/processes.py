"""Several processes of the real command on this machine, with a fake device each, joined as on a cluster."""

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretrain.logs import metrics

ROOT = pathlib.Path(__file__).parents[2]
_LIMIT = 300.0  # seconds until a process that has not ended is a failure


def reserved_port() -> socket.socket:
  """A port that nobody else gets while the socket is open, though process 0 may listen on it."""
  taken = socket.socket()
  taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  taken.bind(("", 0))
  return taken


class Processes:
  """Started processes and what they wrote."""

  def __init__(
    self,
    workdir: pathlib.Path,
    commands: Sequence[Sequence[str]],
    environment: dict[str, str],
    places: Sequence[Mapping[str, Any]] = (),
  ):
    self._workdir = workdir
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    self.started = [
      subprocess.Popen(command, **{"cwd": ROOT, "env": environment, **pipes, **place})
      for command, place in itertools.zip_longest(commands, places[: len(commands)], fillvalue={})
    ]

  def wait_for_step(self, step: int) -> None:
    """Returns once the log has a line of that step."""
    last = time.monotonic() + _LIMIT
    while max((line["step"] for line in metrics.read(self._workdir)), default=0) < step:
      assert time.monotonic() < last and None in [one.poll() for one in self.started], self.ends()
      time.sleep(0.01)

  def send(self, index: int, number: signal.Signals) -> None:
    """Sends a signal to one process."""
    self.started[index].send_signal(number)

  def ends(self) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each, once all have ended."""
    outputs = [one.communicate(timeout=_LIMIT) for one in self.started]
    return [(one.returncode, *output) for one, output in zip(self.started, outputs)]

  def codes(self) -> list[int]:
    """Exit codes once all have ended."""
    ends = self.ends()
    for _, out, err in ends:  # shown by pytest where a test fails
      print(out[-3_000:], err[-3_000:], sep="\n")
    return [code for code, *_ in ends]


@contextlib.contextmanager
def running(
  number: int,
  workdir: pathlib.Path,
  *flags: str,
  devices: int = 1,
  each: Sequence[Sequence[str]] = (),
  places: Sequence[Mapping[str, Any]] = (),
  program: Sequence[str] = ("-m", "pretrain.main"),
  **variables: str,
) -> Iterator[Processes]:
  """`number` processes of a run with these flags and variables of the environment; killed in the end.

  Process i has the flags `each[i]` too, and is started with `places[i]`, arguments of `subprocess.Popen`.
  `program` is what Python runs.
  """
  command = [sys.executable, *program, f"--config={ROOT / 'tests/pretrain/small_run.py'}:mlm"]
  command += [f"--workdir={workdir}", *flags]
  kept = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
  flag = f"--xla_force_host_platform_device_count={devices}"
  environment = os.environ | {"XLA_FLAGS": " ".join([*kept, flag]), "PYTHONPATH": str(ROOT)} | variables
  with reserved_port() as taken:
    address = f"localhost:{taken.getsockname()[1]}"
    commands = []
    for index, own in enumerate([*each, *[()] * number][:number]):
      place = [f"--coordinator={address}", f"--num_processes={number}", f"--process_id={index}"]
      commands.append([*command, *(place if number > 1 else []), *own])
    processes = Processes(workdir, commands, environment, places)
    try:
      yield processes
    finally:
      for one in processes.started:
        one.kill()
        one.communicate()
