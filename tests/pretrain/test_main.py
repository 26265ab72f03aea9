"""The real command in fresh processes: exit codes, lines, kills, and what it must not import."""

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


def _command(*flags: str, code: str | None = None) -> list[str]:
  start = [sys.executable, "-c", code] if code else [sys.executable, "-m", "pretrain.main"]
  return [*start, "--config=tests/pretrain/small_run.py:mlm", *flags]


def _environment() -> dict[str, str]:
  # One device: the same sums in the same order in every process.
  flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
  return os.environ | {"XLA_FLAGS": flags, "PYTHONUNBUFFERED": "1"}


def _run(command: list[str]) -> subprocess.CompletedProcess:
  return subprocess.run(
    command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False
  )


def _signal_at(command: list[str], line: str, number: int) -> tuple[int, str]:
  """Sends a signal when a line of output starts so; the exit code and all output."""
  with subprocess.Popen(
    command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  ) as process:
    said = []
    for text in process.stdout:
      said.append(text)
      if text.startswith(line):
        process.send_signal(number)
    return process.wait(timeout=TIMEOUT), "".join(said)


def _run_here(monkeypatch, *flags: str, recipe: str = "mlm") -> int:
  """The command in this process, for what ends before anything is compiled; its exit code."""
  monkeypatch.chdir(ROOT)
  try:
    return main.main([f"--config=tests/pretrain/small_run.py:{recipe}", *flags])
  except SystemExit as exit_:
    return exit_.code


def _one_error_line(stderr: str) -> str:
  assert "Traceback" not in stderr, stderr
  (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
  assert stderr.strip().splitlines()[-1] == line
  return line


@pytest.fixture(scope="module")
def records(text_file, tmp_path_factory):
  """Flags of a text and of a directory for its records, which the run of `whole` makes."""
  directory = tmp_path_factory.mktemp("records") / "made"
  return (f"--config.data.source={text_file}", f"--config.data.directory={directory}")


@pytest.fixture(scope="module")
def whole(records, tmp_path_factory):
  """An uninterrupted run of the command, the first on its text: (workdir, what it said)."""
  workdir = tmp_path_factory.mktemp("whole")
  done = _run(_command(*records, f"--workdir={workdir}", *LONG, code=_CHECKED))
  assert done.returncode == 0, done.stdout + done.stderr
  return workdir, done.stderr + done.stdout


def test_a_first_start_prepares_the_text_it_names_and_imports_no_tensorflow(whole, records):
  found = subprocess.run(
    [sys.executable, "-c", "import importlib.util as u; print(bool(u.find_spec('tensorflow')))"],
    capture_output=True,
    text=True,
    check=True,
  )
  assert found.stdout.strip() == "True", "this test means something only where TensorFlow is installed"
  # What needs TensorFlow ran in the child.
  assert whole[1].splitlines()[-1] == "imported: []"
  assert "preparing them from" in whole[1]
  assert (pathlib.Path(records[1].partition("=")[2]) / "manifest.json").exists()


def test_the_command_says_what_it_does(whole):
  workdir, said = whole
  lines = said.splitlines()
  assert lines[0].startswith(f"small_run_mlm in {workdir} on 1 ")
  trivial = r"\(token frequencies alone: [\d.]+ per predicted token\)"
  heldout = rf"held-out at step 0  loss [\d.]+  masked_lm_loss [\d.]+  {trivial}"
  assert any(re.match(heldout, line) for line in lines)
  assert any(re.match(r"step 28/60  loss .* tokens/s  .* left", line) for line in lines)
  assert any(line.startswith("Finished: step 60, checkpoint ") for line in lines)


def test_a_run_stopped_once_and_killed_once_ends_as_the_uninterrupted_one(whole, records, tmp_path):
  command = _command(*records, f"--workdir={tmp_path}", *LONG)
  code, said = _signal_at(command, "step 14/60", signal.SIGTERM)
  assert code == 75, said
  assert "Stopped as asked; the same command continues" in said.splitlines()[-1]
  code, said = _signal_at(command, "step 35/60", signal.SIGKILL)
  assert code == -signal.SIGKILL
  assert re.search(r"^Continuing at step \d+ ", said, re.MULTILINE)
  code, said = _signal_at(command, "held-out at step 60", signal.SIGTERM)  # behind the last step
  assert code == 0 and "the request to stop came too late" in said, said
  assert re.search(r"^Continuing at step \d+ ", said, re.MULTILINE) and "Finished: step 60" in said
  assert metric_lines(tmp_path) == metric_lines(whole[0])
  assert_same_params(saved_params(tmp_path), saved_params(whole[0]))


def test_text_that_is_not_there_is_told_in_one_line_and_leaves_nothing(tmp_path, monkeypatch, capfd):
  flags = (
    f"--config.data.source={tmp_path / 'no_such.txt'}",
    f"--config.data.directory={tmp_path / 'records'}",
    f"--workdir={tmp_path / 'run'}",
  )
  assert _run_here(monkeypatch, *flags) == 3
  line = _one_error_line(capfd.readouterr().err)
  assert "no_such.txt matches no file; expected file globs" in line and "--download" not in line
  assert list(tmp_path.iterdir()) == []


def test_an_unknown_field_is_told_before_anything_starts(tmp_path, monkeypatch, capsys):
  assert _run_here(monkeypatch, "--config.train.batchsize=8", f"--workdir={tmp_path / 'run'}") == 2
  assert "batch_size" in _one_error_line(capsys.readouterr().err)
  assert not list(tmp_path.iterdir())


def test_several_hosts_without_a_cluster_are_one_line(tmp_path, monkeypatch, capsys):
  def initialize(*_, **__):
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  assert _run_here(monkeypatch, "--config.train.multihost=true", f"--workdir={tmp_path / 'run'}") == 2
  line, *ways = capsys.readouterr().err.splitlines()
  assert line.startswith("error: train.multihost=True: ") and "coordinator_address" in line
  assert ways and all(way.startswith("  --") for way in ways)
