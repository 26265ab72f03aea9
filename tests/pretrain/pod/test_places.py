"""Where a process of several stands, as flags and the variables of clusters say."""

import pytest

from data.errors import ConfigError
from finetune import main as finetune_main
from pretrain.export import __main__ as export_command
from pretrain.pod import meeting

SLURM = {"SLURM_STEP_NODELIST": "gpu-[001-003,7],x", "SLURM_JOB_ID": "8202", "SLURM_NTASKS": "4"}
SLURM |= {"SLURM_PROCID": "2"}
GKE = {"TPU_WORKER_HOSTNAMES": "t-0.t,t-1.t", "TPU_WORKER_ID": "1"}


@pytest.mark.parametrize(
  ("flags", "environment", "expected"),
  [
    ({}, {}, None),
    ({}, {"JAX_COORDINATOR_ADDRESS": "a:1"}, None),  # a wish to JAX's detection
    ({"coordinator": "a:1", "num_processes": "2", "process_id": "1"}, {}, ("a:1", 2, 1)),
    ({"process_id": "1"}, {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2"}, ("a:1", 2, 1)),
    (
      {"coordinator": "a:1"},
      {},
      "--num_processes (or JAX_NUM_PROCESSES) and --process_id (or JAX_PROCESS_ID)",
    ),
    ({"coordinator": "a", "num_processes": "2", "process_id": "1"}, {}, "expected HOST:PORT"),
    ({"coordinator": "a:1", "num_processes": "two", "process_id": "1"}, {}, "--num_processes=two: expected"),
    ({"coordinator": "a:1", "num_processes": "2", "process_id": "2"}, {}, "numbered 0 to 1"),
    ({}, SLURM, ("gpu-001:61450", 4, 2)),
    ({}, SLURM | {"JAX_COORDINATOR_ADDRESS": "a:1"}, ("a:1", 4, 2)),
    ({}, SLURM | {"SLURM_STEP_NODELIST": "one,b[2-3]"}, ("one:61450", 4, 2)),
    ({}, SLURM | {"SLURM_STEP_NODELIST": "n[7,9-12]"}, ("n7:61450", 4, 2)),
    ({}, SLURM | {"SLURM_STEP_NODELIST": "n[7]"}, ("n7:61450", 4, 2)),
    ({}, SLURM | {"SLURM_STEP_NODELIST": ""}, None),  # the batch script, not a step of srun
    ({}, GKE, ("t-0.t:8476", 2, 1)),
    ({}, GKE | {"MEGASCALE_NUM_SLICES": "2"}, None),
    ({"coordinator": "a:1", "num_processes": "2", "process_id": "1"}, SLURM | GKE, ("a:1", 2, 1)),
  ],
)
def test_the_place_of_a_process_is_read_from_flags_and_environment(flags, environment, expected):
  flags = {name: flags.get(name, "") for name in meeting.VARIABLES}
  if isinstance(expected, str):
    with pytest.raises(ConfigError) as raised:
      meeting.place(flags, environment)
    assert expected in str(raised.value)
  else:
    assert meeting.place(flags, environment) == expected


def test_what_one_process_does_is_refused_to_several_before_anything_is_read(monkeypatch, capsys, tmp_path):
  for name, value in SLURM.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(finetune_main.needed_files, "check", lambda *_, **__: pytest.fail("read"))
  flags = ["--config=configs/finetune_glue.py", "--config.checkpoint=run", f"--workdir={tmp_path / 'run'}"]
  assert finetune_main.main(flags) == 2
  line, way = capsys.readouterr().err.splitlines()
  assert line.startswith("error: fine-tuning runs in one process") and "process 2 of 4; start it" in line
  assert len(line) <= 160 and way == "  srun --ntasks=1 COMMAND"
  for arguments in (["--checkpoint=run", "--output=out"], ["import", "--from=model", "--output=out"]):
    assert export_command.main(arguments) == 2
    line, _ = capsys.readouterr().err.splitlines()
    assert line.startswith("error: an export or import runs in one process"), line
  assert not list(tmp_path.iterdir())
  mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
  with pytest.raises(ConfigError, match="process 1 of 2"):
    meeting.refuse_several(mpi, program="a")
  meeting.refuse_several(mpi | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, program="a")
  meeting.refuse_several(SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, program="a")
