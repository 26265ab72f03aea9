"""Which process of several this is, by flags and variables; what one process does alone; requests to stop."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from data.errors import ConfigError
from finetune import main as finetune_main
from pretrain import pod
from pretrain.export import __main__ as export_command
from pretrain.stop import StopRequest

SLURM = {"SLURM_STEP_NODELIST": "gpu-[001-003,7],x", "SLURM_JOB_ID": "8202", "SLURM_NTASKS": "4"}
SLURM |= {"SLURM_PROCID": "2"}
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
  ({}, SLURM, None),  # JAX detects it
]


def test_the_place_of_a_process_is_read_from_flags_and_environment():
  failures = []
  for given, environment, expected in PLACES:
    try:
      found = pod.rank({name: given.get(name, "") for name in pod.VARIABLES}, environment)
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
  several = [
    ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, "process 1 of 2"),
    ({"TPU_WORKER_HOSTNAMES": "t-0.t,t-1.t", "TPU_WORKER_ID": "1"}, "process 1 of 2"),  # on GKE
    ({"JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "0"}, "process 0 of 3"),
  ]
  for environment, expected in several:
    with pytest.raises(ConfigError, match=expected):
      pod.refuse_several(environment, program="a")
  one = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
  for environment in (
    one,
    SLURM | {"SLURM_STEP_NODELIST": ""},
  ):  # the latter: the batch script, not a step of srun
    pod.refuse_several(environment, program="a")


def test_process_0_does_not_share_the_port_of_another_run(monkeypatch):
  monkeypatch.setattr(time, "sleep", lambda seconds: None)
  with socket.create_server(("localhost", 0)) as other:
    address = f"localhost:{other.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"listens on port {other.getsockname()[1]} of this host"):
      pod._refuse_another_run(address)
  pod._refuse_another_run(address)


# A call of minutes that lets other threads run and does not look for signals.
CODE = """
import hashlib
from pretrain.stop import StopRequest
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
