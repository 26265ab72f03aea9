"""A workdir in a bucket: killed and continued elsewhere, bit by bit; one owner; errors of one line."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import fsspec
import pytest
import s3fs

from data.buckets import owner
from data.buckets.mirror import WORKDIRS, Mirror
from data.buckets.place import Address
from data.errors import ConfigError, DataError, StorageError, UserError
from pretrain.checkpoints import bucket_steps, bucket_workdir, checkpoint, resume
from pretrain.pod.peers import Peers, among
from tests import buckets, lines
from tests.pretrain import small_run
from tests.pretrain.conftest import ROOT

FIELDS = {
  "train.total_steps": 1_600,  # longer than the upload of step 3 takes, at which the run is killed
  "train.log_every": 21,
  "train.eval_every": 200,
  "train.checkpoint_every": 160,
  "train.checkpoint_steps": (3,),
}

KEPT = bucket_workdir.Kept(2, ())


@pytest.fixture(scope="module")
def s3():
  """A server of the S3 protocol with a bucket."""
  with buckets.s3_server() as endpoint:
    yield endpoint


def _kill_after(config_flags, address, cache, line) -> None:
  """Starts the command as on another machine and kills it once it has printed the line."""
  flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
  environment = os.environ | {"XLA_FLAGS": flags, "PYTHONUNBUFFERED": "1", "TEXT_ENCODER_CACHE": str(cache)}
  command = [sys.executable, "-m", "pretrain.main", "--config=tests/pretrain/small_run.py:mlm"]
  command += [f"--workdir={address}", *config_flags]
  options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  with subprocess.Popen(command, cwd=ROOT, env=environment, **options) as process:
    said = []
    for text in process.stdout:
      said.append(text)
      if text.startswith(line):
        process.send_signal(signal.SIGKILL)
  assert process.returncode == -signal.SIGKILL, "".join(said)


def test_a_killed_run_goes_on_elsewhere_as_if_it_had_been_left_in_peace(
  s3, here, small_records, tmp_path, monkeypatch
):
  address = "s3://bucket/runs/a"
  config = small_run.small_config("mlm", small_records, FIELDS)
  flags = [f"--config.{name}={str(value).strip('()').strip(',')}" for name, value in FIELDS.items()]
  flags.append(f"--config.data.directory={small_records}")
  _kill_after(flags, address, tmp_path / "other", "Step 3 is in")
  assert "owner.json" in buckets.names(address)
  monkeypatch.setattr(owner, "SILENCE", 1.0)
  said = []
  assert small_run.run_training(config, address, say=said.append) == 0
  assert any(re.match(rf"{address} is owned by process \d+ on .*; waiting", line) for line in said)
  continued = [re.match(rf"Continuing at step (\d+) from {address}/checkpoints", line) for line in said]
  (start,) = [int(found[1]) for found in continued if found]
  assert 3 <= start < FIELDS["train.total_steps"]
  peace = tmp_path / "peace"
  assert small_run.run_training(config, peace) == 0
  found = buckets.fetched(address, tmp_path / "found")
  assert small_run.metric_lines(found) == small_run.metric_lines(peace)
  small_run.assert_same_params(small_run.saved_params(found), small_run.saved_params(peace))
  assert sorted(os.listdir(found / "checkpoints")) == sorted(os.listdir(peace / "checkpoints"))
  assert "owner.json" not in os.listdir(found) and not (found / "lock").exists()


def test_what_is_damaged_in_the_bucket_is_set_aside_there_and_an_older_step_used(here, finished):
  address = "memory://damaged/run"
  buckets.put_folder(address, finished)
  (name, *_) = sorted(name for name in buckets.names(address) if name.startswith("checkpoints/6/params/d/"))
  buckets.put(address, {name: b"?"})
  said = []
  with lines.heard(said.append), bucket_workdir.opened(address, KEPT) as workdir:
    assert resume.newest_good_step(workdir) == 4
    assert not (pathlib.Path(workdir) / "checkpoints" / "1").exists()  # nobody needs it
  assert any(
    line.startswith(f"{address}/checkpoints/6 is damaged: params/") and "renamed to 6.damaged_1" in line
    for line in said
  )
  there = {name.split("/")[1] for name in buckets.names(address) if name.startswith("checkpoints/")}
  assert there == {"1", "4", "6.damaged_1"}


def test_old_checkpoints_and_remains_of_uploads_go(here, finished):
  address = "memory://pruned/run"
  buckets.put_folder(address, finished)
  with bucket_workdir.opened(address, bucket_workdir.Kept(1, (1,))) as workdir:
    steps = pathlib.Path(workdir) / "checkpoints"
    buckets.remove(f"{address}/checkpoints/6/{checkpoint.COMMITTED}")  # as if it had not been sent to its end
    buckets.put(address, {"checkpoints/6/params/old": b"?"})
    (steps / "6" / checkpoint.COMMITTED).touch()
  there = {name.split("/")[1] for name in buckets.names(address) if name.startswith("checkpoints/")}
  assert there == {"1", "6"} and "checkpoints/6/params/old" not in buckets.names(address)
  assert bucket_steps.step_path(address).name == "6"


def test_processes_with_copies_of_their_own_are_refused(here):
  class Second(Peers):
    """A process whose copy another made."""

    def gather(self, what, value, *, seconds):
      return [value]

    def first(self, what, work, *, seconds):
      return "the copy of process 0"

  line = "^--workdir=memory://pod/run: every process has its own local copy,(.|\n)*export TEXT_ENCODER_CACHE="
  with (
    pytest.raises(ConfigError, match=line),
    among(Second(1, ["a", "b"], {})),
    bucket_workdir.opened("memory://pod/run", KEPT),
  ):
    pass


def test_one_process_owns_a_place_and_a_dead_one_is_outlasted(here, monkeypatch):
  monkeypatch.setattr(owner, "BEAT", 0.1)
  monkeypatch.setattr(owner, "_LOOK", 0.05)
  mirror, lost = Mirror(Address("memory://owned/run", flag="--workdir"), WORKDIRS), []
  with owner.owned(mirror, lost=lost.append):
    mirror.id = "that of another machine"
    with (
      pytest.raises(
        DataError, match=r"^another run is active in memory://owned/run \(process \d+ on .*\); wait"
      ),
      owner.owned(mirror, lost=lost.append),
    ):
      pass
    # Somebody took this process for dead.
    mirror.place.write(owner.NAME, b'{"token": "x", "process": "process 7 on c"}')
    deadline = time.monotonic() + 20
    while not lost and time.monotonic() < deadline:
      time.sleep(0.05)
    assert "process 7 on c has taken it over" in str(lost)
  assert mirror.place.read(owner.NAME)  # which is not ours to remove
  monkeypatch.setattr(owner, "SILENCE", 0.3)
  with owner.owned(mirror, lost=lost.append):
    assert b"process 7 on c" not in mirror.place.read(owner.NAME)
  assert mirror.place.read(owner.NAME) is None


def _refused(address) -> str:
  with pytest.raises(UserError) as error, bucket_workdir.opened(address, KEPT):
    raise AssertionError("a run began")
  line = str(error.value)
  assert "\n" not in line and line.startswith(f"--workdir={address} cannot be ")
  return f"{error.value.exit_code} {line.partition(' cannot be ')[2]}"


def test_a_bucket_that_cannot_be_used_is_one_line(s3, here, monkeypatch):
  assert _refused("s3://nosuch/run").startswith(
    "5 written (FileNotFoundError: The specified bucket does not exist); check the name of the bucket"
  )
  with buckets.strict(s3):
    assert "5 written (PermissionError: The AWS Access Key Id" in _refused("s3://bucket/b")
  monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
  monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of botocore, which waits between them
  monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
  fsspec.filesystem("s3").clear_instance_cache()
  assert "5 written (EndpointConnectionError" in _refused("s3://bucket/c")
  fsspec.filesystem("s3").clear_instance_cache()
  unknown = r"^--workdir=abc://x/y: .*abc; install its library"
  with pytest.raises(ConfigError, match=unknown), bucket_workdir.opened("abc://x/y", KEPT):
    pass


def test_a_failing_upload_stops_the_run_and_says_why(here, small_records, monkeypatch):
  # So many steps that the run does not end before the upload beside it fails.
  config = small_run.small_config("mlm", small_records, FIELDS | {"train.total_steps": 2_000})
  address = "memory://full/run"

  def fail(self, files):
    raise StorageError(f"{self} cannot be written (no rights)")

  monkeypatch.setattr(Address, "send", fail)
  said = []
  with pytest.raises(StorageError, match=f"^--workdir={address} cannot be written"):
    small_run.run_training(config, address, say=said.append)
  assert any(line.startswith("Stopped as asked") for line in said)
