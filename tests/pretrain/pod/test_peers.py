"""Processes that meet, agree and end together, as threads of this one: real sockets, no JAX."""

import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from data.errors import ConfigError, DataError, StorageError
from finetune import main as finetune_main
from pretrain.export import __main__ as export_command
from pretrain.pod import meeting, peers
from pretrain.pod.link import Link
from pretrain.pod.peers import Peers
from pretrain.pod.stop import StopRequest
from tests.pretrain.pod.processes import reserved_port


@pytest.fixture
def in_a_hurry(monkeypatch):
  monkeypatch.setattr(peers, "BEAT", 0.1)
  monkeypatch.setattr(peers, "LEAVING", 1e6)  # the thread that would end this process
  monkeypatch.setattr(peers, "end_process", lambda code, line: None)


def connected(number: int) -> tuple[list[Peers], list[tuple]]:
  """Peers of `number` processes, and what ended each: (process, exit code, line)."""
  pairs = {index: socket.socketpair() for index in range(1, number)}
  ended: list[tuple] = []

  def ending(index: int):
    return lambda code, line: ended.append((index, code, line))

  hosts = [f"host{index}" for index in range(number)]
  links = [{index: Link(pair[0]) for index, pair in pairs.items()}]
  links += [{0: Link(pair[1])} for pair in pairs.values()]
  return [Peers(at, hosts, links[at], patience=20, end=ending(at)) for at in range(number)], ended


def on_all(work, *arguments):
  """`work` of every argument at the same time: results, or the errors that were raised."""

  def kept(argument):
    try:
      return work(argument)
    except Exception as error:
      return error

  with ThreadPoolExecutor(len(arguments)) as pool:
    return list(pool.map(kept, arguments))


def until(condition, seconds: float = 10.0) -> None:
  last = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < last
    time.sleep(0.01)


def test_processes_meet_and_agree_and_an_error_of_one_is_raised_by_all(in_a_hurry):
  with reserved_port() as taken:
    address = f"localhost:{taken.getsockname()[1]}"
    places = [meeting.Rank(address, 3, index) for index in (2, 1, 0)]
    three = on_all(lambda place: meeting.meet(place, seconds=20, patience=20), *places)
  assert [one.index for one in three] == [2, 1, 0]
  heard = on_all(lambda one: one.gather("numbers", one.index**2, seconds=5), *three)
  assert heard == [[0, 1, 4]] * 3
  assert on_all(lambda one: one.first("of one", lambda: one.index + 7, seconds=5), *three) == [7] * 3

  def work(one):
    def open_records():
      if one.index == 1:
        raise DataError("no records")
      return one.index

    return one.together("records", open_records, seconds=5)

  assert [type(error) for error in on_all(work, *three)] == [DataError] * 3


def test_all_stop_at_the_same_point_however_far_each_is(in_a_hurry):
  for asked in (0, 2):
    made, ended = connected(3)
    stops = {}

    def loop(one, asked=asked, stops=stops):
      for point in range(1, 100_000):
        if one.reached_stop():
          stops[one.index] = point
          return
        time.sleep(0.001 * (1 + one.index))  # the first is furthest
        if point == 20 and one.index == asked:
          one.ask_to_stop()

    on_all(loop, *made)
    assert len(set(stops.values())) == 1 and stops[0] > 20 and len(stops) == 3, stops
    assert not ended


def test_who_fails_or_goes_ends_the_others(in_a_hurry):
  made, ended = connected(2)

  def work(one):
    with one.ending_together():
      raise StorageError("disk full")

  on_all(work, made[1])
  until(lambda: ended)
  assert ended[0][:2] == (0, 6) and "exit code 5: disk full" in ended[0][2]
  for gone in (0, 1):
    made, ended = connected(3)
    with made[gone]._hub:  # all close at once: process 0 tells nobody in between which link closed first
      for link in made[gone]._links.values():
        link.close()
    until(lambda ended=ended, gone=gone: {index for index, *_ in ended} >= {0, 1, 2} - {gone})
    found = [(code, line) for index, code, line in ended if index != gone]
    assert all(code == 6 and line.startswith(f"process {gone} (host{gone})") for code, line in found)
  made, ended = connected(3)

  def end(one):
    with one.ending_together():
      pass
    for link in one._links.values():
      link.close()

  on_all(end, *made)
  time.sleep(0.3)
  assert not ended  # after the end nobody is missed


SLURM = {"SLURM_STEP_NODELIST": "gpu-[001-003,7],x", "SLURM_JOB_ID": "8202", "SLURM_NTASKS": "4"}
SLURM |= {"SLURM_PROCID": "2"}
GKE = {"TPU_WORKER_HOSTNAMES": "t-0.t,t-1.t", "TPU_WORKER_ID": "1"}
ALL = {"coordinator": "a:1", "num_processes": "2", "process_id": "1"}
PLACES = [
  ({}, {}, None),
  ({}, {"JAX_COORDINATOR_ADDRESS": "a:1"}, None),  # a wish to JAX's detection
  (ALL, {}, ("a:1", 2, 1)),
  ({"process_id": "1"}, {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2"}, ("a:1", 2, 1)),
  ({"coordinator": "a:1"}, {}, "--process_id"),
  (ALL | {"coordinator": "a"}, {}, "HOST:PORT"),
  (ALL | {"num_processes": "two"}, {}, "--num_processes=two"),
  (ALL | {"process_id": "2"}, {}, "0 to 1"),
  ({}, SLURM, ("gpu-001:61450", 4, 2)),
  ({}, SLURM | {"JAX_COORDINATOR_ADDRESS": "a:1"}, ("a:1", 4, 2)),
  ({}, SLURM | {"SLURM_STEP_NODELIST": "one,b[2-3]"}, ("one:61450", 4, 2)),
  ({}, SLURM | {"SLURM_STEP_NODELIST": "n[7,9-12]"}, ("n7:61450", 4, 2)),
  ({}, SLURM | {"SLURM_STEP_NODELIST": ""}, None),  # the batch script, not a step of srun
  ({}, GKE, ("t-0.t:8476", 2, 1)),
  ({}, GKE | {"MEGASCALE_NUM_SLICES": "2"}, None),
  (ALL, SLURM | GKE, ("a:1", 2, 1)),
]


def test_the_place_of_a_process_is_read_from_flags_and_environment():
  failures = []
  for given, environment, expected in PLACES:
    try:
      found = meeting.place({name: given.get(name, "") for name in meeting.VARIABLES}, environment)
    except ConfigError as error:
      found = str(error)
    if expected not in found if isinstance(expected, str) and isinstance(found, str) else found != expected:
      failures.append(f"{given} {environment}: {found}, expected {expected}")
  assert not failures, "\n".join(failures)


def test_what_one_process_does_is_refused_to_several_before_anything_is_read(monkeypatch, capsys, tmp_path):
  for name, value in SLURM.items():
    monkeypatch.setenv(name, value)
  flags = ["--config=configs/finetune_glue.py", "--config.checkpoint=run", f"--workdir={tmp_path / 'run'}"]
  export = ["--checkpoint=run", "--output=out"]
  for program, arguments in ((finetune_main, flags), (export_command, export)):
    assert program.main(arguments) == 2
    assert "process 2 of 4" in (error := capsys.readouterr().err) and "\n  srun --ntasks=1 COMMAND" in error
  assert not list(tmp_path.iterdir())
  mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
  with pytest.raises(ConfigError, match="process 1 of 2"):
    meeting.refuse_several(mpi, program="a")
  meeting.refuse_several(mpi | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, program="a")


# A call of minutes that lets other threads run and does not look for signals.
CODE = """
import hashlib
from pretrain.pod.stop import StopRequest
with StopRequest():
  print("begun", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)
"""
TERM, INT = signal.SIGTERM, signal.SIGINT


def test_a_second_request_ends_a_long_call_into_compiled_code():
  for first, second in ((TERM, TERM), (TERM, INT)):
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True) as started:
      assert started.stdout is not None and started.stdout.readline() == "begun\n"
      started.send_signal(first)
      time.sleep(0.3)
      assert started.poll() is None
      started.send_signal(second)
      try:
        # The latter where the first signal came before the call.
        assert started.wait(timeout=5) in (128 + second, -second)
      finally:
        started.kill()


def test_an_ignored_signal_stays_ignored():
  before = signal.signal(INT, signal.SIG_IGN)  # as a shell starts what follows a command with &
  try:
    with StopRequest() as stop:
      signal.raise_signal(INT)
      assert not stop.is_set
      signal.raise_signal(TERM)
      assert stop.is_set and signal.getsignal(INT) == signal.SIG_IGN
  finally:
    signal.signal(INT, before)
