"""launch/prepare_slurm.sbatch: tasks of an array as processes here, and the errors that end them all."""

import os
import subprocess
import sys

import pytest

from data import manifest
from tests.data.conftest import make_documents, write_text
from tests.launch.test_launch import LAUNCH, ROOT, run, stand_in


def start(folder, task, *flags):
  variables = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "2"}
  return subprocess.Popen(
    ["bash", LAUNCH / "prepare_slurm.sbatch", *flags],
    cwd=folder,
    env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
    stderr=subprocess.PIPE,
    text=True,
  )


def test_the_tasks_of_an_array_prepare_together(tmp_path):
  stand_in(tmp_path / ".venv" / "bin", "python", f'exec {sys.executable} "$@"')
  for number in range(2):
    write_text(tmp_path / f"part{number}.txt", make_documents(60, seed=number))
  flags = [f"--source={tmp_path}/*.txt", f"--output={tmp_path}/records", "--length=32", "--workers=1"]
  tasks = [start(tmp_path, task, *flags, "--train_vocabulary_size=150") for task in (4, 3)]
  said = [task.communicate(timeout=120)[1] for task in tasks]
  assert [task.returncode for task in tasks] == [0, 0], said
  assert "tokenise and pack, part of rank 1: done" in said[0]
  assert manifest.read(tmp_path / "records").counts["documents"] == 120


@pytest.mark.parametrize("flags", [["--output=my records"], ["--output", "my records"]])
@pytest.mark.parametrize(
  ("code", "there", "printed"),
  [
    (2, "work", "scancel 7\n"),
    (3, "work", ""),  # a worker process of this task died, or a dead node holds the lock
    (3, "work/steps/00-ab/errors/3.error", "scancel 7\n"),
    (5, "work/steps/00-ab/errors/3.error", "scancel 7\n"),
    (3, "", "scancel 7\n"),  # task 0 failed before any unit was made
    (6, "", ""),
    (137, "work", ""),
    (0, "", ""),
  ],
)
def test_only_errors_of_the_user_end_the_other_tasks(tmp_path, monkeypatch, code, there, printed, flags):
  (tmp_path / "my records" / there).mkdir(parents=True)
  stand_in(tmp_path / ".venv" / "bin", "python", f"exit {code}")
  stand_in(tmp_path / "bin", "scancel", 'echo "scancel $*"')
  monkeypatch.chdir(tmp_path)
  variables = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "2"}
  command = ["bash", LAUNCH / "prepare_slurm.sbatch", *flags]
  done = run(command, folder=tmp_path / "bin", SLURM_ARRAY_JOB_ID="7", **variables)
  assert (done.returncode, done.stdout) == (code, printed)
