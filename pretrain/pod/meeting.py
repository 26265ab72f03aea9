"""Connects the processes of a run: reads their ranks from flags or the environment, then contacts process 0.

Imports no JAX, so that it can run before JAX starts and name missing processes.
"""

import re
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from data import errors
from data.errors import ConfigError, PeerError
from pretrain.pod.link import Link
from pretrain.pod.peers import AGAIN, Peers

# {flag: JAX's environment variable of the same meaning}.
VARIABLES = {
  "coordinator": "JAX_COORDINATOR_ADDRESS",
  "num_processes": "JAX_NUM_PROCESSES",
  "process_id": "JAX_PROCESS_ID",
}
_Met = tuple[list[str], dict[int, Link]]  # host names of all processes, connections
GRACE = 5.0  # seconds after its own time-out in which process 0 reports missing processes
_HELLO = "text encoder pretraining"  # identifies the first message of a process


class Rank(NamedTuple):
  """The index of a process, the number of processes, and the address of process 0."""

  coordinator: str  # host:port of process 0
  number: int  # processes
  index: int  # of this one


def place(flags: Mapping[str, str], environment: Mapping[str, str]) -> Rank | None:
  """Returns this process's rank from flags or else the environment; None if JAX must detect it.

  ConfigError: only a part is given, or a value is invalid.
  """
  texts = {name: flags.get(name) or environment.get(variable, "") for name, variable in VARIABLES.items()}
  if not any(flags.values()) and not (texts["num_processes"] or texts["process_id"]):
    texts = _of_cluster(environment) | ({"coordinator": texts["coordinator"]} if texts["coordinator"] else {})
    if len(texts) < len(VARIABLES):
      return None  # JAX itself reads an address that is given alone
  missing = [f"--{name} (or {VARIABLES[name]})" for name, text in texts.items() if not text]
  if missing:
    raise ConfigError(f"{' and '.join(missing)} missing; set --coordinator, --num_processes and --process_id")
  host, _, port = texts["coordinator"].rpartition(":")
  if not host or not port.isdecimal():
    raise ConfigError(f"--coordinator={texts['coordinator']}: expected HOST:PORT of process 0")
  numbers = []
  for name, least in (("num_processes", 1), ("process_id", 0)):
    if not texts[name].isdecimal() or int(texts[name]) < least:
      raise ConfigError(f"--{name}={texts[name]}: expected a whole number of at least {least}")
    numbers.append(int(texts[name]))
  number, index = numbers
  if index >= number:
    raise ConfigError(f"--process_id={index}: the {number} processes are numbered 0 to {number - 1}")
  return Rank(texts["coordinator"], number, index)


def _of_cluster(environment: Mapping[str, str]) -> dict[str, str]:
  """Returns {flag: value} from the variables of Slurm or of GKE's TPU hosts; {} if they are not set.

  The ports are the ones that JAX uses. Cloud TPU's metadata and Open MPI's address format are left to JAX's
  detection, which cannot name missing processes. Source: https://slurm.schedmd.com/srun.html,
  https://cloud.google.com/kubernetes-engine/docs/how-to/tpus.
  """
  slurm = [environment.get(f"SLURM_{name}", "") for name in ("STEP_NODELIST", "JOB_ID", "NTASKS", "PROCID")]
  if all(slurm) and slurm[1].isdecimal():
    nodes, job, number, index = slurm
    first = re.match(r"([^,[]*)(?:\[([^]\-,]*))?", nodes)  # of 'node[001-004,9],login': 'node', '001'
    host = "".join(filter(None, first.groups())) if first else ""
    return {
      "coordinator": f"{host}:{61_440 + int(job) % 4_096}",
      "num_processes": number,
      "process_id": index,
    }
  hosts, index = environment.get("TPU_WORKER_HOSTNAMES", ""), environment.get("TPU_WORKER_ID", "")
  is_one_slice = not any(name.startswith("MEGASCALE_") for name in environment)
  if hosts and index and is_one_slice and "TPU_PROCESS_ADDRESSES" not in environment:
    names = hosts.split(",")
    return {"coordinator": f"{names[0]}:8476", "num_processes": str(len(names)), "process_id": index}
  return {}


def refuse_several(environment: Mapping[str, str], *, program: str) -> None:
  """Raises ConfigError if the environment's variables show that `program` has several processes."""
  where = place({}, environment)
  if where is None and "OMPI_COMM_WORLD_RANK" in environment:  # of Open MPI's mpirun
    where = Rank("", *(int(environment[f"OMPI_COMM_WORLD_{name}"]) for name in ("SIZE", "RANK")))
  if where is not None and where.number > 1:
    raise ConfigError(
      f"{program} runs in one process on one host, but this is process {where.index} of {where.number}; "
      "start it once, and each further run in its own directory; under Slurm:\n  srun --ntasks=1 COMMAND"
    )


def listen(port: int = 0) -> socket.socket:
  """Opens a socket for process 0 on all addresses of this host; raises ConfigError if the port is taken."""
  if port:
    _refuse_another_run(port)
  both = socket.has_dualstack_ipv6()
  try:
    return socket.create_server(
      ("", port),
      family=socket.AF_INET6 if both else socket.AF_INET,
      dualstack_ipv6=both,
      reuse_port=True,
      backlog=4096,
    )
  except OSError as error:
    raise ConfigError(
      f"--coordinator: port {port} of this host cannot be used ({errors.reason(error)}); use another port"
    ) from error


def _refuse_another_run(port: int) -> None:
  """Raises ConfigError if a program listens on a port; one that is ending has some seconds.

  JAX's coordinator of a run that trains shares its port: a second run could open it, and would end the first.
  """
  for wait in (1, 2, 4, 0):
    try:
      socket.create_connection(("localhost", port), timeout=1).close()
    except OSError:
      return
    time.sleep(wait)
  raise ConfigError(
    f"--coordinator: a program, perhaps another run, listens on port {port} of this host; use another port"
  )


def meet(where: Rank, *, seconds: float, patience: float, listener: socket.socket | None = None) -> Peers:
  """Waits at most `seconds` for all processes of the run, and returns their connections.

  `patience` is that of `Peers`; `listener` is a socket that process 0 has already opened. PeerError names the
  missing processes. ConfigError: two processes have the same number, or different values of --num_processes.
  """
  last = time.monotonic() + seconds
  if where.index == 0:
    with listener or listen(int(where.coordinator.rpartition(":")[2])) as listener:
      hosts, links = _receive(where, listener, last, seconds)
  else:
    hosts, links = _call(where, last, seconds)
  return Peers(where.index, hosts, links, patience=patience)


def _receive(where: Rank, listener: socket.socket, last: float, seconds: float) -> _Met:
  hosts, links, refused = {0: socket.gethostname()}, {}, []
  problem: errors.UserError | None = None
  while len(hosts) < where.number and problem is None:
    listener.settimeout(max(0.05, last - time.monotonic()))
    try:
      link = Link(listener.accept()[0])
      word = link.receive(2)  # a process sends its first message at once
    except TimeoutError:
      if time.monotonic() > last:
        missing = ", ".join(str(index) for index in range(where.number) if index not in hosts)
        there = ", ".join(f"{index} ({host})" for index, host in sorted(hosts.items()))
        problem = PeerError(
          f"missing after {seconds:.0f} s: process {missing} of {where.number} (joined: {there}); read its "
          f"output, check that its host reaches {where.coordinator}, then {AGAIN}"
        )
      continue
    if not isinstance(word, dict) or word.get("hello") != _HELLO:
      link.close()  # another program's
      continue
    index, host = word["index"], word["host"]
    if word["number"] != where.number:
      problem = ConfigError(
        f"process {index} ({host}) was started as one of {word['number']}, process 0 as one of "
        f"{where.number}; give all processes the same --num_processes"
      )
    elif index in hosts:
      problem = ConfigError(
        f"two processes have --process_id={index} ({hosts[index]} and {host}); give each its own number"
      )
    if problem is None:
      hosts[index], links[index] = host, link
    else:
      refused = [link]
  listener.close()  # JAX needs the port
  names = [hosts.get(index, "") for index in range(where.number)]
  answer = {"problem": [problem.exit_code, str(problem)]} if problem else {"hosts": names}
  for link in [*links.values(), *refused]:
    link.send(answer)
  if problem is not None:
    raise problem
  return names, links


def _call(where: Rank, last: float, seconds: float) -> _Met:
  host, _, port = where.coordinator.rpartition(":")
  word = {"hello": _HELLO, "index": where.index, "number": where.number, "host": socket.gethostname()}
  why = "no process listens there"
  while time.monotonic() < last:
    try:
      link = Link(socket.create_connection((host.strip("[]"), int(port)), timeout=5))
    except OSError as error:
      why = errors.reason(error)
      time.sleep(0.2)
      continue
    link.send(word)
    try:
      answer = link.receive(max(0.0, last - time.monotonic()) + GRACE)
    except TimeoutError:
      why = "it does not answer"
      break
    if isinstance(answer, dict) and "problem" in answer:
      raise errors.of_code(*answer["problem"])
    if isinstance(answer, dict) and "hosts" in answer:
      return answer["hosts"], {0: link}
    # Another program, or process 0 of an earlier start that is about to end.
    why = "another program listens there"
    link.close()
    time.sleep(0.5)
  raise PeerError(
    f"process 0 was not reached at {where.coordinator} within {seconds:.0f} s ({why}); read its output, "
    f"check --coordinator, then {AGAIN}"
  )
