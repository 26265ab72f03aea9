"""Joins this process with the others of its run, compares their programs and configs, and starts JAX."""

import contextlib
import ctypes
import hashlib
import logging
import os
import pathlib
import platform
import signal
import socket
from collections.abc import Iterator

import jax
import numpy as np

from data import command, errors
from data.errors import ConfigError, PeerError
from pretrain.command import fields, flags
from pretrain.pod import meeting
from pretrain.pod.ending import end_later
from pretrain.pod.meeting import Rank
from pretrain.pod.peers import AGAIN, BEAT, COMPARING, PATIENCE, Peers, among

logger = logging.getLogger(__name__)

_ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")


@contextlib.contextmanager
def joined(arguments: flags.Arguments) -> Iterator[Peers]:
  """Connects and compares all processes of the run and their devices; all end together after the block.

  ConfigError: there is no cluster here, or the processes run different programs or configs. PeerError:
  processes are missing; the message names them.
  """
  with _outliving_jax():
    rendezvous = meeting.place({name: arguments.place[name] for name in meeting.VARIABLES}, os.environ)
    join_seconds = _seconds(arguments, "join_timeout", 120)
    patience = _seconds(arguments, "peer_timeout", PATIENCE)
    if rendezvous is None:
      _initialize(join_seconds)
      peers = _meet_after_jax(join_seconds, patience)
    else:
      peers = meeting.meet(rendezvous, seconds=join_seconds, patience=patience)
    with peers.ending_together():
      advice = "bring all hosts to the same commit and packages"
      peers.compare("the program", _program(), advice, seconds=COMPARING)
      config = fields.flatten(arguments.config) | {"--workdir": arguments.workdir}
      peers.compare("the config", config, "start all processes with the same command", seconds=COMPARING)
      if rendezvous is not None:
        _initialize(join_seconds, rendezvous)
      with _bounded(join_seconds, "JAX did not start its devices"):
        devices = {"kind": jax.devices()[0].device_kind, "number": jax.local_device_count()}
      peers.compare("the devices", devices, "use hosts with equal and free devices", seconds=join_seconds)
      with among(peers):
        yield peers
    jax.distributed.shutdown()


def _seconds(arguments: flags.Arguments, name: str, default: float) -> float:
  text = arguments.place[name] or str(default)
  if not text.replace(".", "", 1).isdecimal() or float(text) < 2 * BEAT:
    raise ConfigError(f"--{name}={text}: expected at least {2 * BEAT:.0f} seconds")
  return float(text)


@contextlib.contextmanager
def _outliving_jax() -> Iterator[None]:
  """Delays JAX's abort after a lost coordinator by 6 s, so that the listening thread reports it first.

  The C library's `sleep`, which is safe in a signal handler, handles SIGABRT. Its argument is the signal's
  number, 6. Then the abort continues.
  """
  library = ctypes.CDLL(None)
  library.signal.argtypes, library.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
  before = library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
  try:
    yield
  finally:
    library.signal(signal.SIGABRT, before)


def _initialize(seconds: float, place: Rank | None = None) -> None:
  """Starts jax.distributed with a rank, or with the rank that JAX detects if `place` is None."""
  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from this command
  coordinator, number, index = place or (None, None, None)
  try:
    with _bounded(seconds, "not all processes of this cluster have joined"):
      jax.distributed.initialize(
        coordinator, number, index, initialization_timeout=int(2 * seconds) + 1, shutdown_timeout_seconds=30
      )
  except (ValueError, RuntimeError) as error:
    raise ConfigError(
      f"train.multihost=True: JAX finds no cluster here ({errors.reason(error)}); start one process per host "
      "of a TPU pod, under Slurm or Open MPI, or use one of\n"
      "  --coordinator=HOST:PORT --num_processes=N --process_id=I\n  --config.train.multihost=false"
    ) from error


@contextlib.contextmanager
def _bounded(seconds: float, what: str) -> Iterator[None]:
  """Ends the process if the block, which cannot be interrupted, takes more than `seconds`."""
  line = f"{what} within {seconds:.0f} s; read the output of the other processes, then {AGAIN}"
  timer = end_later(seconds, PeerError.exit_code, line)
  try:
    yield
  finally:
    timer.cancel()


def _meet_after_jax(seconds: float, patience: float) -> Peers:
  """Connects the processes of a cluster that JAX detected; JAX broadcasts process 0's address to them."""
  from jax.experimental import multihost_utils

  with _bounded(seconds, "the first exchange between devices did not finish"):
    listener, text = None, b""
    if jax.process_index() == 0:
      listener = meeting.listen()
      text = f"{_own_address()}:{listener.getsockname()[1]}".encode()
    sent = np.frombuffer(text.ljust(256, b"\0"), np.uint8)
    heard = multihost_utils.broadcast_one_to_all(sent)
  address = bytes(heard).rstrip(b"\0").decode()
  place = Rank(address, jax.process_count(), jax.process_index())
  return meeting.meet(place, seconds=seconds, patience=patience, listener=listener)


def _own_address() -> str:
  """Returns the address of this host as other hosts see it; sends no packet."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("192.0.2.1", 9))  # reserved for documentation: the system selects a route, sends nothing
      return probe.getsockname()[0]
    except OSError:
      return socket.gethostname()


def _program() -> dict[str, str]:
  """Returns the versions of Python and packages, and a digest of the training code, of this process."""
  code = hashlib.sha256()
  for part in ("data", "pretrain"):
    for path in sorted((_ROOT / part).rglob("*.py")):
      code.update(path.relative_to(_ROOT).as_posix().encode() + path.read_bytes())
  known = {"python": platform.python_version(), "code": code.hexdigest()[:12]}
  return known | command.versions(PACKAGES)
