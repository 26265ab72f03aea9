"""Saves on slow storage, one after another and none left out; a disk that fills while a run trains."""

import re
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp

from pretrain.checkpoints import checkpoint, integrity, resume
from pretrain.checkpoints.checkpoint import Checkpoints
from tests.pretrain.pod.processes import running


def test_a_save_longer_than_its_interval_is_told_with_both_times_and_none_is_skipped(
  tmp_path, monkeypatch, caplog
):
  seal, at_work = integrity.seal, []

  def slow_seal(*arguments, **options):
    at_work.append(options["step"])
    time.sleep(0.3)
    seal(*arguments, **options)
    assert at_work == [options["step"]]  # no other save beside it
    at_work.clear()

  monkeypatch.setattr(integrity, "seal", slow_seal)
  monkeypatch.setattr(checkpoint, "LONG_WAIT", 0.1)
  checkpoints = Checkpoints(tmp_path, every=1, keep=5)
  state = {"params": {"w": jnp.ones(2)}, "step": jnp.int32(1)}
  assert [checkpoints.save(step, state, {}) for step in (1, 2, 3)] == [True] * 3
  checkpoints.close()
  assert checkpoint.saved_steps(checkpoints.directory) == [1, 2, 3]
  pattern = r"Saving step (.) took ([\d.]+) s, the next was due after ([\d.]+) s: training waited .*"
  words = [re.fullmatch(pattern, line) for line in caplog.messages]
  assert [found and found[1] for found in words] == ["1", "2"]
  assert all(found and float(found[2]) >= 0.3 > float(found[3]) for found in words)


def test_nothing_that_orbax_deprecates_is_called(tmp_path, monkeypatch):
  events = []  # orbax does not warn; it counts such calls for its authors
  monkeypatch.setattr(jax.monitoring, "record_event", lambda name, **_: events.append(name))
  state = {"params": {"w": jnp.ones(2)}, "step": jnp.int32(1)}
  checkpoints = Checkpoints(tmp_path, every=1, keep=1)
  checkpoints.save(1, state, {})
  checkpoints.wait()
  checkpoints.restore(jax.eval_shape(lambda: state))
  checkpoints.close()
  checkpoint.load_params(tmp_path)
  assert events and not [name for name in events if "deprecat" in name]


def test_a_disk_that_fills_ends_the_command_with_one_line_and_the_older_step_stays(
  small_records, tmp_path, caplog
):
  fields = {"train.total_steps": 100_000, "train.checkpoint_every": 20, "data.directory": small_records}
  with running(1, tmp_path / "run", *[f"--config.{name}={value}" for name, value in fields.items()]) as one:
    one.wait_for_step(30)
    while not checkpoint.saved_steps(tmp_path / "run" / "checkpoints"):
      assert one.started[0].poll() is None
      time.sleep(0.01)
    # Less than a checkpoint: a full disk under checkpoints and log alike.
    resource.prlimit(one.started[0].pid, resource.RLIMIT_FSIZE, (8_000, 8_000))
    ((code, _, err),) = one.ends()
  assert code == 5, err
  (line,) = [line for line in err.splitlines() if line.startswith("error:")]
  assert (
    re.match("error: (cannot save to .*|.*: cannot be written) .*check space", line) and "Trace" not in err
  )
  assert (resume.newest_good_step(tmp_path / "run") or 0) >= 20 and not caplog.messages


# Most of sixty arrays fail, some of them after the save has ended with the error of the first.
SAVES_ON_A_FULL_DISK = """
import contextlib, gc, resource, sys, time, jax, jax.numpy as jnp
from data import command
from pretrain.checkpoints.checkpoint import Checkpoints
keys = jax.random.split(jax.random.key(0), 60)
params = {str(n): jax.random.normal(key, (300, 300)) for n, key in enumerate(keys)}
def async_serialize_from_host():
  async def write_fragment(): pass
  return write_fragment()
for limit in (12_000, 20_000, 60_000, 100_000):
  with command.one_line_errors(stopped="", is_last=True):
    with contextlib.closing(Checkpoints(f"{sys.argv[1]}/{limit}", every=1, keep=5)) as saving:
      async_serialize_from_host()  # as orbax leaves one when the loop ends first, which is a matter of timing
      resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
      saving.save(1, {"params": params, "step": jnp.int32(1)}, {})
      saving.wait()
  resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
gc.collect()
time.sleep(0.5)
"""


def test_a_save_of_which_much_fails_leaves_no_traceback_beside_its_error(tmp_path):
  command = [sys.executable, "-c", SAVES_ON_A_FULL_DISK, str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  assert re.fullmatch(r"(error: cannot save to .*\n){4}", done.stderr), done.stderr
