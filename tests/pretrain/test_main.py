"""The real command in fresh processes: exit codes, lines, kills, and what it must not import."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys

import jax
import pytest

from pretrain import main
from tests.pretrain.conftest import ROOT
from tests.pretrain.small_run import assert_same_params, metric_lines, saved_params

# Long enough to be interrupted, and no interval ends where another does.
LONG = ("--config.train.total_steps=60", "--config.train.log_every=7", "--config.train.eval_every=20")
LONG += ("--config.train.checkpoint_every=5",)

TIMEOUT = 900  # seconds; a command takes about ten where nothing else runs

# A start that leaves the names of heavy modules that were imported as its last line.
_CHECKED = """
import sys
from pretrain import main
code = main.main(sys.argv[1:])
heavy = ("tensorflow", "seqio", "tensorflow_datasets", "torch")
print("imported:", sorted(set(sys.modules) & set(heavy)))
sys.exit(code)
"""


def _start(*flags: str, program: tuple[str, ...] = ("-m", "pretrain.main")) -> subprocess.Popen:
  # One device: the same sums in the same order in every process.
  xla = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
  command = [sys.executable, *program, "--config=tests/pretrain/small_run.py:mlm", *flags]
  environment = os.environ | {"XLA_FLAGS": xla, "PYTHONUNBUFFERED": "1"}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def _signal_at(line: str, number: int, *flags: str) -> tuple[int, str]:
  """Sends a signal when a line of output starts so; the exit code and all output."""
  with _start(*flags) as process:
    said = []
    for text in process.stdout:
      said.append(text)
      if text.startswith(line):
        process.send_signal(number)
    return process.wait(timeout=TIMEOUT), "".join(said)


def _run_here(monkeypatch, *flags: str) -> int:
  """The command in this process, for what ends before anything is compiled; its exit code."""
  monkeypatch.chdir(ROOT)
  try:
    return main.main(["--config=tests/pretrain/small_run.py:mlm", *flags])
  except SystemExit as exit_:
    return exit_.code


@pytest.fixture(scope="module")
def records(text_file, tmp_path_factory):
  """Flags of a text and of a directory for its records, which the run of `whole` makes."""
  directory = tmp_path_factory.mktemp("records") / "made"
  return (f"--config.data.source={text_file}", f"--config.data.directory={directory}")


@pytest.fixture(scope="module")
def whole(records, tmp_path_factory):
  """An uninterrupted run of the command, the first on its text: (workdir, its output)."""
  workdir = tmp_path_factory.mktemp("whole")
  process = _start(*records, f"--workdir={workdir}", *LONG, program=("-c", _CHECKED))
  said, _ = process.communicate(timeout=TIMEOUT)
  assert process.returncode == 0, said
  return workdir, said


def test_a_first_start_prepares_the_text_says_what_it_does_and_imports_no_tensorflow(whole, records):
  workdir, said = whole
  # What needs TensorFlow, which is installed, ran in the child.
  assert importlib.util.find_spec("tensorflow")
  assert said.splitlines()[-1] == "imported: []"
  assert (pathlib.Path(records[1].partition("=")[2]) / "manifest.json").exists()
  trivial = r"\(token frequencies alone: [\d.]+ per predicted token\)"
  for line in (
    rf"small_run_mlm in {workdir} on 1 ",
    rf"held-out at step 0  loss [\d.]+  masked_lm_loss [\d.]+  {trivial}",
    r"step 28/60  loss .* tokens/s  .* left",
    r"Finished: step 60, checkpoint ",
  ):
    assert re.search(f"^{line}", said, re.MULTILINE), line


def test_a_run_stopped_once_and_killed_once_ends_as_the_uninterrupted_one(whole, records, tmp_path):
  flags = (*records, f"--workdir={tmp_path}", *LONG)
  code, said = _signal_at("step 14/60", signal.SIGTERM, *flags)
  assert code == 75 and "the same command continues" in said.splitlines()[-1], said
  code, said = _signal_at("step 35/60", signal.SIGKILL, *flags)
  assert code == -signal.SIGKILL
  assert re.search(r"^Continuing at step \d+ ", said, re.MULTILINE)
  code, said = _signal_at("held-out at step 60", signal.SIGTERM, *flags)  # behind the last step
  assert code == 0 and "the request to stop came too late" in said, said
  assert re.search(r"^Continuing at step \d+ ", said, re.MULTILINE) and "Finished: step 60" in said
  assert metric_lines(tmp_path) == metric_lines(whole[0])
  assert_same_params(saved_params(tmp_path), saved_params(whole[0]))


def test_an_unknown_field_is_told_before_anything_starts(tmp_path, monkeypatch, capfd):
  def initialize(*_, **__):
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  source, directory = tmp_path / "no_such.txt", tmp_path / "records"
  for flags, code, word in (
    (["--config.train.batchsize=8"], 2, "batch_size"),
    ([f"--config.data.source={source}", f"--config.data.directory={directory}"], 3, "no_such.txt"),
    (["--config.train.multihost=true"], 2, "coordinator_address"),  # without a cluster
  ):
    assert _run_here(monkeypatch, *flags, f"--workdir={tmp_path / 'run'}") == code, flags
    said = capfd.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert word in line and "Traceback" not in said
    assert not list(tmp_path.iterdir())
