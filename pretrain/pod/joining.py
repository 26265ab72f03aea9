"""One process among several: it joins the others, compares with them what it runs, and starts JAX."""

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import pathlib
import platform
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from data import command, errors, files
from data.buckets import mirror
from data.errors import ConfigError
from pretrain.command import fields, flags
from pretrain.pod import meeting
from pretrain.pod.ending import end_process
from pretrain.pod.meeting import Rank
from pretrain.pod.peers import AGAIN, BEAT, COMPARING, PATIENCE, Peers, among

logger = logging.getLogger(__name__)

_ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")


@contextlib.contextmanager
def joined(arguments: flags.Arguments) -> Iterator[Peers]:
  """Meets all processes of the run, compares them, connects their devices; after the block all end together.

  ConfigError: there is no cluster here, or the processes run different programs or configs. PeerError:
  processes are missing; the line names them.
  """
  with _outliving_jax():
    rendezvous = meeting.place({name: arguments.place[name] for name in meeting.VARIABLES}, os.environ)
    join_seconds, patience = (
      _seconds(arguments, "join_timeout", 120),
      _seconds(arguments, "peer_timeout", PATIENCE),
    )
    if rendezvous is None:
      _initialize(join_seconds)
      peers = _meet_after_jax(join_seconds, patience)
    else:
      peers = meeting.meet(rendezvous, seconds=join_seconds, patience=patience)
    with peers.ending_together():
      compare(peers, _facts(fields.flatten(arguments.config), arguments.workdir))
      if rendezvous is not None:
        _initialize(join_seconds, rendezvous)
      with _bounded(join_seconds, "JAX's devices did not start"):
        own = [jax.devices()[0].device_kind, jax.local_device_count(), _free_bytes(arguments.workdir)]
      reports = peers.gather("devices", own, seconds=join_seconds)
      _compare_devices(peers, reports)
      if arguments.debug or arguments.verbose or peers.index == 0:
        for index, (kind, number, free) in enumerate(reports):
          line = f"{number} x {kind}, {free / 1e9:,.0f} GB free for {arguments.workdir}"
          logger.info(f"{peers.name(index)}: {line}")
      with among(peers):
        yield peers
    jax.distributed.shutdown()


def _seconds(arguments: flags.Arguments, name: str, default: float) -> float:
  text = arguments.place[name] or str(default)
  if not text.replace(".", "", 1).isdecimal() or float(text) < 2 * BEAT:
    raise ConfigError(f"--{name}={text}: expected seconds, at least {2 * BEAT:.0f}")
  return float(text)


@contextlib.contextmanager
def _outliving_jax() -> Iterator[None]:
  """Gives the listening thread 6 s before JAX aborts a process whose coordinator went.

  The C library's `sleep` is the handler of SIGABRT: its argument is the signal's number, and it may be called
  there. Then the abort goes on.
  """
  library = ctypes.CDLL(None)
  library.signal.argtypes, library.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
  before = library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
  try:
    yield
  finally:
    library.signal(signal.SIGABRT, before)


def _initialize(seconds: float, place: Rank | None = None) -> None:
  """Starts jax.distributed, at a place or where JAX's own detection puts it."""
  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from this command
  known = {} if place is None else dict(zip(("coordinator_address", "num_processes", "process_id"), place))
  try:
    with _bounded(seconds, "not all processes of this cluster have come"):
      jax.distributed.initialize(
        **known, initialization_timeout=int(2 * seconds) + 1, shutdown_timeout_seconds=30
      )
  except (ValueError, RuntimeError) as error:
    raise ConfigError(
      f"train.multihost=True: JAX finds no cluster here ({errors.reason(error)}); start one process on each "
      "host of a TPU pod, or under Slurm or Open MPI, which tell it of the others; elsewhere give each "
      "--coordinator=HOST:PORT --num_processes=N --process_id=I, or use --config.train.multihost=false"
    ) from error


class _bounded:
  """Ends the process where the block, which cannot be interrupted, takes more than `seconds`."""

  def __init__(self, seconds: float, what: str) -> None:
    line = f"{what} within {seconds:.0f} s; look at the output of the other processes, then {AGAIN}"
    self._timer = threading.Timer(seconds, end_process, (6, line))
    self._timer.daemon = True

  def __enter__(self) -> None:
    self._timer.start()

  def __exit__(self, *_) -> None:
    self._timer.cancel()


def _meet_after_jax(seconds: float, patience: float) -> Peers:
  """Meets the processes that JAX has connected; they learn process 0's address from its devices."""
  from jax.experimental import multihost_utils

  with _bounded(seconds, "the first exchange between the devices was not done"):
    listener, text = None, b""
    if jax.process_index() == 0:
      listener = meeting.listen()
      text = f"{_own_address()}:{listener.getsockname()[1]}".encode()
    sent = np.zeros(256, np.uint8)
    sent[: len(text)] = np.frombuffer(text, np.uint8)
    heard = np.asarray(multihost_utils.process_allgather(sent)).reshape(-1, 256)[0]
  address = heard.tobytes().rstrip(b"\0").decode()
  place = Rank(address, jax.process_count(), jax.process_index())
  return meeting.meet(place, seconds=seconds, patience=patience, listener=listener)


def _own_address() -> str:
  """The address of this host towards others; no packet is sent to find it."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("192.0.2.1", 9))  # an address of documentation: the way out of this host is asked for
      return probe.getsockname()[0]
    except OSError:
      return socket.gethostname()


def _facts(config: Mapping[str, Any], workdir: str) -> dict[str, Any]:
  code = hashlib.sha256()
  for part in ("data", "pretrain"):
    for path in sorted((_ROOT / part).rglob("*.py")):
      code.update(path.relative_to(_ROOT).as_posix().encode() + path.read_bytes())
  return {
    "program": {
      "python": platform.python_version(),
      **command.versions(PACKAGES),
      "code": code.hexdigest()[:12],
    },
    "config": {name: json.loads(json.dumps(value)) for name, value in config.items()},
    "workdir": workdir,
  }


def compare(peers: Peers, facts: dict[str, Any]) -> None:
  """Raises a ConfigError, on all processes the same, where a process differs from process 0."""
  reports = peers.gather("what each runs", facts, seconds=COMPARING)
  advice = {
    "program": "bring all hosts to the same commit and packages",
    "config": "start all with the same command",
    "workdir": "start all with the same --workdir, on a file system that they share",
  }
  for index, report in enumerate(reports):
    for what, advised in advice.items():
      lines = _differences(report[what], reports[0][what])
      if lines:
        raise ConfigError(
          f"{peers.name(index)} has another {what} than {peers.name(0)}: {'; '.join(lines[:5])}; {advised}"
        )


def _differences(found: Any, expected: Any) -> list[str]:
  if not isinstance(found, dict):
    return [] if found == expected else [f"{found} instead of {expected}"]
  return [
    f"{name} {found.get(name)} instead of {expected.get(name)}"
    for name in sorted({*found, *expected})
    if found.get(name) != expected.get(name)
  ]


def _compare_devices(peers: Peers, reports: list[list]) -> None:
  for index, (kind, number, _) in enumerate(reports):
    if [kind, number] != reports[0][:2]:
      raise ConfigError(
        f"{peers.name(index)} has {number} x {kind}, {peers.name(0)} {reports[0][1]} x {reports[0][0]}; "
        "start on hosts of one kind, with all their devices free"
      )


def _free_bytes(workdir: str) -> int:
  is_copied = files.is_address(workdir)
  path = mirror.local_name(workdir, mirror.WORKDIRS) if is_copied else pathlib.Path(workdir).absolute()
  return shutil.disk_usage(next(parent for parent in (path, *path.parents) if parent.exists())).free
