"""Two processes of the real command: one run, stopped, killed and continued, as one process trains it."""

import shutil
import signal
import time

import numpy as np
import pytest

from pretrain.logs import metrics
from tests.pretrain import small_run
from tests.pretrain.processes import running

STEPS = 120
FIELDS = {
  "train.total_steps": STEPS,
  "train.log_every": 1,  # tests wait for lines
  "train.eval_every": 60,
  "train.checkpoint_every": 10_000,  # only stops and the end save
}


def _flags(records, **changes) -> list[str]:
  fields = {**FIELDS, "data.directory": records, **changes}
  return [f"--config.{name}={value}" for name, value in fields.items()]


@pytest.fixture(scope="module")
def alone(small_records, tmp_path_factory):
  """The workdir of the run that one process with two devices makes, never stopped."""
  workdir = tmp_path_factory.mktemp("alone") / "run"
  config = small_run.small_config("mlm", small_records, FIELDS)
  assert small_run.run_training(config, workdir, number=2) == 0
  return workdir


def _assert_same_run(workdir, expected) -> None:
  """Every figure of the log once, losses within 1e-5."""
  found, wanted = metrics.read(workdir), metrics.read(expected)
  assert [line["step"] for line in found] == [line["step"] for line in wanted]
  for line, one in zip(found, wanted):
    names = [name for name in one if name.startswith(("train/", "eval/"))]
    for name in names:
      np.testing.assert_allclose(line[name], one[name], rtol=1e-5, err_msg=f"{name} at {one['step']}")


def test_a_run_is_stopped_killed_and_continued_by_two_and_by_one(small_records, alone, tmp_path):
  workdir, flags = tmp_path / "run", _flags(small_records)
  # SIGTERM to one: both stop at one step, with one checkpoint; neither has compiled its step twice.
  with running(2, workdir, *flags, JAX_LOG_COMPILES="1") as two:
    two.wait_for_step(5)
    two.send(1, signal.SIGTERM)
    (first, _, err), (second, _, other_err) = two.ends()
  assert (first, second) == (75, 75), err
  compiled = [text.count("Finished XLA compilation of jit(train_step)") for text in (err, other_err)]
  assert compiled == [1, 1]
  assert "Stopped as asked" in err and "Stopped as asked" not in other_err
  (stopped,) = (workdir / "checkpoints").iterdir()
  assert int(stopped.name) == metrics.read(workdir)[-1]["step"] < STEPS
  # SIGKILL to one: the other ends by itself and names it.
  killed = tmp_path / "killed"
  shutil.copytree(workdir, killed)
  with running(2, killed, *flags, "--peer_timeout=5") as two:
    two.wait_for_step(int(stopped.name) + 5)
    two.send(1, signal.SIGKILL)
    begun = time.monotonic()
    (code, _, err), (signalled, *_) = two.ends()
  assert time.monotonic() - begun < 5 + 20
  assert (code, signalled) == (6, -signal.SIGKILL), err
  (line,) = _error_lines([(code, "", err)])
  assert line == err.splitlines()[-1]
  assert line.startswith("error: process 1 (") and "is gone" in line and "the same command resumes" in line
  assert f"Continuing at step {int(stopped.name):,}" in err
  # One process with two devices goes on from the newest checkpoint.
  config = small_run.small_config("mlm", small_records, FIELDS)
  assert small_run.run_training(config, killed, number=2) == 0
  _assert_same_run(killed, alone)


@pytest.mark.nightly
def test_a_process_ends_with_a_line_of_its_own_where_process_0_is_lost(small_records, tmp_path):
  """JAX aborts it at once, with a stack trace; a line that names process 0 and the way out comes last."""
  with running(2, tmp_path / "run", *_flags(small_records)) as two:
    two.wait_for_step(5)
    two.send(0, signal.SIGKILL)
    _, (code, _, err) = two.ends()
  assert code == -signal.SIGABRT, err
  line = err.splitlines()[-1]
  assert "because process 0 (" in line and "is gone" in line and "the same command resumes" in line


@pytest.mark.nightly
def test_an_error_of_process_0_alone_ends_both_with_one_line_each(tmp_path):
  flags = _flags(tmp_path / "records", **{"data.source": tmp_path / "none.txt"})
  with running(2, tmp_path / "run", *flags) as two:
    ends = two.ends()
  assert [code for code, *_ in ends] == [3, 3], ends
  first, second = _error_lines(ends)
  assert "none.txt" in first and second.startswith("error: process 0 (") and "none.txt" in second


@pytest.mark.nightly
def test_process_0_prepares_the_text_while_the_other_waits(text_file, tmp_path):
  records = tmp_path / "records"
  with running(2, tmp_path / "run", *_flags(records, **{"data.source": text_file})) as two:
    (code, _, err), (other, _, other_err) = two.ends()
  assert (code, other) == (0, 0), err
  assert len([*records.rglob("manifest.json")]) == 1
  assert "Finished: step" in err and "Finished: step" not in other_err


def test_processes_of_unlike_configs_end_with_one_line_each(small_records, tmp_path):
  with running(2, tmp_path / "run", *_flags(small_records), each=[[], ["--config.seed=1"]]) as processes:
    ends = processes.ends()
  assert [code for code, *_ in ends] == [2, 2], ends
  assert all("seed 1 instead of 0" in line for line in _error_lines(ends)), ends
  assert not (tmp_path / "run").exists()


def _error_lines(ends) -> list[str]:
  """The one line of each process that says why it ended."""
  lines = [[line for line in err.splitlines() if line.startswith("error:")] for *_, err in ends]
  assert [len(found) for found in lines] == [1] * len(ends), ends
  return [found[0] for found in lines]
