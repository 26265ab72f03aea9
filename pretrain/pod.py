"""The processes of a run on one or several hosts: joined by JAX, compared, stopped and ended together.

A run of one process calls the same functions, which then return at once. Functions import JAX where they need
it, so that a wrong flag is reported in a fraction of a second.
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from data import command, errors
from data.errors import ConfigError, PeerError, StorageError, UserError

T = TypeVar("T")

# {flag: environment variable of the same meaning}; JAX itself reads only the first variable.
VARIABLES = {
  "coordinator": "JAX_COORDINATOR_ADDRESS",
  "num_processes": "JAX_NUM_PROCESSES",
  "process_id": "JAX_PROCESS_ID",
}
# Variables with the number of processes and the number of this one: ours, and those of `srun` and `mpirun`.
_NUMBERS = (
  ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
  ("SLURM_NTASKS", "SLURM_PROCID"),
  ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")
AGAIN = "start all processes again: the same command resumes, with any number of processes"
_ROOT = pathlib.Path(__file__).parents[1]
_LEAVING = 10.0  # seconds that process 0, to which all are connected, waits for the others to end
_DAYS = 30 * 86_400  # seconds at a barrier: process 0 may prepare text for hours
_LAST_LINE = 'read -r line; read -r over || echo "$line" >&2'  # of a shell: unless it hears that all is over
_hosts: list[str] = []  # host names of all processes of a run that has joined
_barriers = itertools.count()


class Rank(NamedTuple):
  """The address of process 0, the number of processes, and the index of this one."""

  coordinator: str  # HOST:PORT
  number: int
  index: int


def rank(flags: Mapping[str, str], environment: Mapping[str, str]) -> Rank | None:
  """Returns this process's rank from flags or else the environment; None if JAX must detect it.

  ConfigError: only a part is given, or a value is invalid.
  """
  texts = {name: flags.get(name) or environment.get(variable, "") for name, variable in VARIABLES.items()}
  if not any(flags.values()) and not (texts["num_processes"] or texts["process_id"]):
    return None  # JAX itself reads an address that is given alone
  missing = [f"--{name} (or {VARIABLES[name]})" for name, text in texts.items() if not text]
  if missing:
    raise ConfigError(f"{' and '.join(missing)} missing; set --coordinator, --num_processes and --process_id")
  host, _, port = texts["coordinator"].rpartition(":")
  if not host or not port.isdecimal():
    raise ConfigError(f"--coordinator={texts['coordinator']}: expected HOST:PORT of process 0")
  for name, least in (("num_processes", 1), ("process_id", 0)):
    if not texts[name].isdecimal() or int(texts[name]) < least:
      raise ConfigError(f"--{name}={texts[name]}: expected a whole number of at least {least}")
  number, index = int(texts["num_processes"]), int(texts["process_id"])
  if index >= number:
    raise ConfigError(f"--process_id={index}: the {number} processes are numbered 0 to {number - 1}")
  return Rank(texts["coordinator"], number, index)


def refuse_several(environment: Mapping[str, str], *, program: str) -> None:
  """Raises ConfigError if the environment's variables show that `program` has several processes."""
  known = dict(environment)
  if not known.get("SLURM_STEP_NODELIST"):  # the batch script, not a step of srun
    known.pop("SLURM_PROCID", None)
  hosts = known.get("TPU_WORKER_HOSTNAMES", "").split(",")  # of GKE
  found = [(len(hosts), known.get("TPU_WORKER_ID", ""))]
  found += [(known.get(number, ""), known.get(index, "")) for number, index in _NUMBERS]
  for number, index in found:
    if index and str(number).isdecimal() and int(number) > 1:
      raise ConfigError(
        f"{program} runs in one process on one host, but this is process {index} of {number}; "
        "start it once, and each further run in its own directory; under Slurm:\n  srun --ntasks=1 COMMAND"
      )


@contextlib.contextmanager
def joined(config: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[int]:
  """Connects all processes of a run and compares them; yields this one's index. All end after the block.

  `config`: what must be the same, by name; `flags`: those of `command.flags.PLACE`. After an error of its own
  a process ends alone, and the others within seconds; they name it. ConfigError: there is no cluster here, or
  the processes run different programs, configs or devices.
  """
  import jax

  where = rank({name: flags[name] for name in VARIABLES}, os.environ)
  join, patience = _seconds(flags, "join_timeout", 120), _seconds(flags, "peer_timeout", 30)
  late = f"not all processes have joined within {join} s; read their output, then {AGAIN}"
  timer = threading.Timer(join, _end, (PeerError.exit_code, late))  # at its own time-out JAX would abort
  timer.daemon = True
  timer.start()
  watch = None
  try:
    _initialize(where, 2 * join, patience)
    _hosts[:] = ["unknown host"] * len({device.process_index for device in jax.devices()})
    watch = _Watch()
    _refuse_unlike_devices()
    _hosts[:] = gather(socket.gethostname())
    timer.cancel()
    watch.prepare_last_line()
    compare("the program", _program(), "bring all hosts to the same commit and packages")
    compare("the config", config, "start all processes with the same command")
    yield jax.process_index()
    wait_for_all()
  except BaseException as error:
    # A collective that fails, also within a save, may mean that another process is lost.
    cause = error.__cause__ if isinstance(error, StorageError) else error
    if watch is not None and isinstance(cause, ValueError | RuntimeError) and not errors.is_full_disk(cause):
      time.sleep(patience + _LEAVING)  # meanwhile `_Watch` ends this process if so
    raise
  finally:
    timer.cancel()
    if watch is not None:
      watch.leave()


def _initialize(where: Rank | None, join: int, patience: int) -> None:
  """Starts jax.distributed with a rank, or with the rank that JAX detects if it is None."""
  import jax

  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from this command
  jax.config.update("jax_enable_recoverability", True)  # JAX names lost processes to `_Watch`
  address, number, index = where or (None, None, None)
  if address and index == 0:
    _refuse_another_run(address)
  try:
    jax.distributed.initialize(
      address, number, index, initialization_timeout=join, heartbeat_timeout_seconds=patience
    )
  except (ValueError, RuntimeError) as error:
    raise ConfigError(
      f"train.multihost=True: JAX finds no cluster here ({errors.reason(error)}); start one process per host "
      "of a TPU pod, under Slurm or Open MPI, or use one of\n"
      "  --coordinator=HOST:PORT --num_processes=N --process_id=I\n  --config.train.multihost=false"
    ) from error


def _seconds(flags: Mapping[str, str], name: str, default: int) -> int:
  text = flags[name] or str(default)
  if not text.isdecimal() or int(text) < 4:
    raise ConfigError(f"--{name}={text}: expected a whole number of at least 4 seconds")
  return int(text)


def _refuse_another_run(address: str) -> None:
  """Raises ConfigError if a program listens at process 0's address: JAX would share the port with it."""
  host, _, port = address.rpartition(":")
  for wait in (1, 2, 4, 8, 0):  # a run that ends has some seconds
    try:
      socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
      return
    time.sleep(wait)
  raise ConfigError(
    f"--coordinator: a program, perhaps another run, listens on port {port} of this host; use another port"
  )


def _refuse_unlike_devices() -> None:
  import jax

  found: dict[int, list[str]] = {}
  for device in jax.devices():
    found.setdefault(device.process_index, []).append(device.device_kind)
  for index, kinds in found.items():
    if kinds != found[0]:
      differ = " and ".join(f"process {at} has {len(found[at])} x {found[at][0]}" for at in (index, 0))
      raise ConfigError(f"{differ}; use hosts with equal and free devices")


def _program() -> dict[str, str]:
  """Returns the versions of Python and packages, and a digest of the training code, of this process."""
  code = hashlib.sha256()
  for path in sorted(path for part in ("data", "pretrain") for path in (_ROOT / part).rglob("*.py")):
    code.update(path.relative_to(_ROOT).as_posix().encode() + path.read_bytes())
  known = {"python": platform.python_version(), "code": code.hexdigest()[:12]}
  return known | command.versions(PACKAGES)


def _name(index: int) -> str:
  return f"process {index} ({_hosts[index]})"


def _end(code: int, line: str) -> None:
  """Prints a last line and ends this process at once, even if threads are blocked in compiled code."""
  with contextlib.suppress(OSError, ValueError):
    print(f"error: {line}", file=sys.stderr, flush=True)
  end_now(code)


def end_now(code: int) -> None:
  """Ends this process without waiting for threads; it flushes standard output and runs no other cleanup."""
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
  os._exit(code)


def has_joined() -> bool:
  """Returns whether this process is, or was, one of several."""
  return bool(_hosts)


class _Watch:
  """Threads that learn of lost processes from JAX, and then end this one with a line that names them."""

  def __init__(self) -> None:
    import jax

    self._index = jax.process_index()
    self._is_leaving, self._is_alone = threading.Event(), threading.Event()
    self._shell = None
    for work in (self._look, self._hear_process_0)[: 1 + (self._index > 0)]:
      threading.Thread(target=work, name="watch", daemon=True).start()

  def prepare_last_line(self) -> None:
    """Starts a shell that prints a last line if JAX aborts this process, because process 0 is lost."""
    if self._index > 0:
      why = f"was ended by a signal, or by JAX because {_name(0)} is gone"
      start = {"stdin": subprocess.PIPE, "start_new_session": True, "text": True, "bufsize": 1}
      self._shell = subprocess.Popen(["sh", "-c", _LAST_LINE], **start)
      line = f"error: {_name(self._index)} {why}; read its output, then {AGAIN}"
      print(line, file=self._shell.stdin)

  def _look(self) -> None:
    import jax
    from jax.experimental import multihost_utils

    while True:
      try:
        with multihost_utils.live_devices(jax.devices()) as alive:  # waits for this call of all others
          if {device.process_index for device in alive} == {self._index}:
            self._is_alone.set()
            return
      except multihost_utils.ProcessFailureError as error:
        self._report(sorted({device.process_index for device in error.failed_devices}))
      except Exception:  # of the connection to process 0: JAX aborts
        time.sleep(_LEAVING)
        self._report([0])
      if self._index == 0:
        time.sleep(1)

  def _hear_process_0(self) -> None:
    """Ends this process when process 0 says that it ends, for it is too late when it has ended."""
    with contextlib.suppress(Exception):
      _barrier("process 0 leaves")
      self._report([0])

  def _report(self, lost: list[int]) -> None:
    # This process may be about to end for the same reason, as at an error in data that all have read.
    if not self._is_leaving.wait(4 if self._index == 0 else 2):
      who = " and ".join(map(_name, lost))
      self._be_silent()
      _end(PeerError.exit_code, f"{who} is gone: read its output, then {AGAIN}")

  def _be_silent(self) -> None:
    if self._shell is not None:
      with contextlib.suppress(OSError):
        print("over", file=self._shell.stdin)
      self._shell.wait()

  def leave(self) -> None:
    """Leaves the run; the others see it at once. Process 0 leaves last, within `_LEAVING` seconds."""
    import jax

    self._is_leaving.set()
    if self._index == 0:
      threading.Thread(target=self._hear_process_0, daemon=True).start()  # the others hear it
      self._is_alone.wait(_LEAVING)
    self._be_silent()
    with contextlib.suppress(RuntimeError):  # another process is gone already
      jax.distributed.shutdown()


def _barrier(key: str) -> None:
  from orbax.checkpoint import multihost

  multihost.get_barrier_sync_fn()(key=key, timeout_ms=_DAYS * 1000)


def wait_for_all() -> None:
  """Waits until all processes have called this, perhaps for hours, on no device; a signal ends it."""
  import jax

  if jax.process_count() == 1:
    return
  concurrent.futures.ThreadPoolExecutor(1).submit(_barrier, f"barrier {next(_barriers)}").result()


def gather(value: T) -> list[T]:
  """Returns the JSON `value` of every process, in order; all call it at the same point of the program."""
  import jax
  from jax.experimental import multihost_utils

  if jax.process_count() == 1:
    return [value]
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(len(text)))
  room = -(-int(sizes.max()) // 4096) * 4096  # of few sizes, each of which is a program
  rows = multihost_utils.process_allgather(np.pad(text, (0, room - len(text))))
  return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes)]


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Waits after the block until all processes have finished it, and raises a UserError of one on all."""
  import jax

  own = None
  try:
    yield
  except UserError as error:
    if jax.process_count() == 1:
      raise
    own = error
  if jax.process_count() == 1:
    return
  wait_for_all()
  problems = gather((own.exit_code, str(own)) if own else None)
  if own is not None:
    raise own
  for index, problem in enumerate(problems):
    if problem:
      raise errors.of_code(problem[0], f"{_name(index)}: {problem[1]}")


def first(work: Callable[[], T]) -> T:
  """Runs `work` on process 0 alone, perhaps for hours; all return its JSON result, or raise its UserError."""
  import jax

  value: Any = None
  with together():
    if jax.process_index() == 0:
      value = work()
  return gather(value)[0]


def compare(what: str, facts: Mapping[str, Any], advice: str, *, kind: type[UserError] = ConfigError) -> None:
  """Raises an error of type `kind` on all processes if the JSON values of any differ from process 0's."""
  zero, *others = gather(dict(facts))
  for index, found in enumerate(others, 1):
    names = sorted(name for name in {*found, *zero} if found.get(name) != zero.get(name))
    if names:
      lines = "; ".join(f"{name} {found.get(name)} instead of {zero.get(name)}" for name in names[:5])
      raise kind(f"{_name(index)} and {_name(0)} differ in {what}: {lines}; {advice}")
