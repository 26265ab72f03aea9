"""Two processes of the real command: one run, stopped, killed and continued, as one process trains it."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pretrain.checkpoints import checkpoint
from pretrain.logs import metrics
from tests import buckets
from tests.pretrain import small_run
from tests.pretrain.pod.processes import ROOT, running

STEPS = 120
FIELDS = {
  "train.total_steps": STEPS,
  "train.log_every": 1,  # tests wait for lines
  "train.eval_every": 60,
  "train.checkpoint_every": 10_000,  # only stops and the end save
  "train.replica_check_every": 3,  # each process compares the devices of both
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
  with running(2, killed, *flags) as two:
    two.wait_for_step(int(stopped.name) + 5)
    two.send(1, signal.SIGKILL)
    begun = time.monotonic()
    (code, _, err), (signalled, *_) = two.ends()
  assert time.monotonic() - begun < 60
  assert (code, signalled) == (6, -signal.SIGKILL), err
  assert err.splitlines()[-1].startswith("error: process 1 (") and "is gone" in err.splitlines()[-1]
  assert f"Continuing at step {int(stopped.name):,}" in err
  # One process with two devices goes on from the newest checkpoint.
  config = small_run.small_config("mlm", small_records, FIELDS)
  assert small_run.run_training(config, killed, number=2) == 0
  _assert_same_run(killed, alone)


@pytest.mark.nightly
def test_four_processes_lose_the_first_and_two_go_on(small_records, alone, tmp_path):
  workdir, flags = tmp_path / "run", _flags(small_records, **{"train.checkpoint_every": 10})
  with running(4, workdir, *flags) as four:
    four.wait_for_step(15)
    four.send(0, signal.SIGKILL)
    ends = four.ends()
  assert [code for code, *_ in ends] == [-signal.SIGKILL, 6, 6, 6], ends
  lasts = [err.splitlines()[-1] for _, _, err in ends[1:]]
  assert all(line.startswith("error: process 0 (") and "is gone" in line for line in lasts), lasts
  with running(2, workdir, *flags) as two:
    two.wait_for_step(60)
    for index in (0, 1):
      two.send(index, signal.SIGTERM)
    assert two.codes() == [75, 75]
  with running(4, workdir, *flags) as four:
    four.wait_for_step(STEPS)
    four.send(0, signal.SIGTERM)  # behind the last step
    assert four.codes() == [0] * 4
  _assert_same_run(workdir, alone)


@pytest.mark.nightly
def test_the_launch_file_trains_as_four_processes(small_records, alone, tmp_path):
  workdir = tmp_path / "run"
  flags = [
    "--config=tests/pretrain/small_run.py:mlm",
    f"--workdir={workdir}",
    *_flags(small_records),
  ]
  kept = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
  environment = os.environ | {"PYTHON": sys.executable, "XLA_FLAGS": " ".join(kept)}
  done = subprocess.run(
    [ROOT / "launch" / "local.sh", "4", *flags], cwd=ROOT, env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  _assert_same_run(workdir, alone)


@pytest.mark.nightly
@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_of_one_host_ends_all_with_one_line_each(small_records, tmp_path, full):
  changes = {"train.checkpoint_every": 10, "mesh.fsdp": 2}  # each writes its half
  with running(2, tmp_path / "run", *_flags(small_records, **changes)) as two:
    two.wait_for_step(1)
    # More than the logs of ten steps need, less than a checkpoint.
    resource.prlimit(two.started[full].pid, resource.RLIMIT_FSIZE, (12_000, 12_000))
    begun = time.monotonic()
    ends = two.ends()
  assert time.monotonic() - begun < 60
  assert [code for code, *_ in ends] == ([5, 6] if full == 0 else [6, 5]), ends
  lines = _error_lines(ends)
  assert lines[full].startswith("error: cannot save to"), lines
  assert (
    f"process {full} (" in lines[1 - full] and "ended with exit code 5: cannot save to" in lines[1 - full]
  )
  assert not checkpoint.saved_steps(tmp_path / "run" / "checkpoints")


@pytest.mark.nightly
def test_two_processes_work_in_one_copy_of_a_bucket(small_records, alone, tmp_path):
  flags = _flags(small_records, **{"train.checkpoint_every": 50})
  with buckets.s3_server(), buckets.machine(tmp_path / "cache"):
    with running(2, "s3://bucket/run", *flags) as two:
      assert two.codes() == [0, 0]
    _assert_same_run(buckets.fetched("s3://bucket/run", tmp_path / "found"), alone)


@pytest.mark.nightly
def test_a_bucket_that_cannot_be_used_ends_both_with_one_line_each(small_records, tmp_path):
  with buckets.s3_server() as endpoint, buckets.machine(tmp_path / "cache"):
    with running(2, "s3://nosuch/run", *_flags(small_records)) as two:
      missing = two.ends()
    with buckets.strict(endpoint), running(2, "s3://bucket/run", *_flags(small_records)) as two:
      refused = two.ends()
  for ends, reason in ((missing, "The specified bucket does not exist"), (refused, "The AWS Access Key Id")):
    # Both have the error of process 0; who hears first that the other has ended has 6.
    assert sorted(code for code, *_ in ends) in ([5, 5], [5, 6]), ends
    assert all(reason in line for line in _error_lines(ends)), ends


@pytest.mark.nightly
def test_process_0_prepares_the_text_while_the_other_waits(text_file, tmp_path):
  records = tmp_path / "records"
  with running(2, tmp_path / "run", *_flags(records, **{"data.source": text_file})) as two:
    (code, _, err), (other, _, other_err) = two.ends()
  assert (code, other) == (0, 0), err
  assert len([*records.rglob("manifest.json")]) == 1
  assert "Finished: step" in err and "Finished: step" not in other_err


@pytest.mark.nightly
def test_what_only_one_host_has_or_runs_ends_all_with_one_line_each(small_records, tmp_path):
  flags = _flags(small_records)
  for number, each, code, said in [
    (2, [[], ["--config.seed=1"]], 2, "differ in the config: seed 1 instead of"),
    (2, [[], ["--workdir=elsewhere"]], 2, "differ in the config: --workdir elsewhere instead of"),
    (2, [[], ["--num_processes=3"]], 2, "was started as one of 3, process 0 as one of 2"),
    (1, [["--coordinator=localhost:1", "--num_processes=2", "--process_id=1"]], 6, "was not reached"),
    (1, [["--num_processes=2"]], 2, "--coordinator (or JAX_COORDINATOR_ADDRESS)"),
  ]:
    with running(number, tmp_path / "run", *flags, "--join_timeout=15", each=each) as processes:
      ends = processes.ends()
    assert [found for found, *_ in ends] == [code] * number, ends
    for _, _, err in ends:
      (line,) = [line for line in err.splitlines() if line.startswith("error:")]
      assert said in line, line


def _error_lines(ends) -> list[str]:
  """The one line of each process that says why it ended."""
  lines = [[line for line in err.splitlines() if line.startswith("error:")] for *_, err in ends]
  assert [len(found) for found in lines] == [1] * len(ends), ends
  return [found[0] for found in lines]
