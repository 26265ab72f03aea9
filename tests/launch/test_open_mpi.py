"""Processes of which only JAX can tell who is who: they meet once it has connected them, as on Cloud TPU."""

import os
import re
import subprocess
import sys

import pytest


def _under_open_mpi(tmp_path, ranks, *flags) -> list[tuple[int, str, str]]:
  """(exit code, stdout, stderr) of processes with the variables that `mpirun` sets for two."""
  command = [sys.executable, "-m", "pretrain.main", "--config=tests/pretrain/small_run.py:mlm", "--dry_run"]
  command += [f"--workdir={tmp_path / 'run'}", "--config.train.multihost=true", *flags]
  job = os.getpid() % 4_096 * 4_096  # JAX takes its port from it
  variables = {"OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"}
  variables |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "XLA_FLAGS": ""}
  started = [
    subprocess.Popen(
      command,
      env=os.environ | variables | {"OMPI_COMM_WORLD_RANK": str(rank)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for rank in ranks
  ]
  outputs = [one.communicate(timeout=120) for one in started]
  return [(one.returncode, *output) for one, output in zip(started, outputs)]


def test_open_mpi_is_found_by_jax(tmp_path):
  (code, out, err), (other, silent, _) = _under_open_mpi(tmp_path, (0, 1))
  assert (code, other) == (0, 0), err
  assert re.search(r"^mesh:\n  data +2$", out, re.MULTILINE), out
  assert "mesh" not in silent


@pytest.mark.nightly
def test_a_process_that_only_jax_could_name_is_not_waited_for_without_end(tmp_path):
  ((code, _, err),) = _under_open_mpi(tmp_path, (0,), "--join_timeout=10")
  assert code == 6 and "not all processes of this cluster have joined within 10 s" in err
