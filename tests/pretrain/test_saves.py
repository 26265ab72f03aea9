"""Saves on slow storage: one after another, none left out, and said."""

import re
import time

import jax.numpy as jnp

from pretrain import checkpoint, integrity
from pretrain.checkpoint import Checkpoints


def test_a_save_longer_than_its_interval_is_told_with_both_times_and_none_is_skipped(tmp_path, monkeypatch):
  seal, lines, at_work = integrity.seal, [], []

  def slow_seal(*arguments, **options):
    at_work.append(options["step"])
    time.sleep(0.3)
    seal(*arguments, **options)
    assert at_work == [options["step"]]  # no other save beside it
    at_work.clear()

  monkeypatch.setattr(integrity, "seal", slow_seal)
  monkeypatch.setattr(checkpoint, "LONG_WAIT", 0.1)
  checkpoints = Checkpoints(tmp_path, every=1, keep=5, log=lines.append)
  state = {"params": {"w": jnp.ones(2)}, "step": jnp.int32(1)}
  assert [checkpoints.save(step, state, {}) for step in (1, 2, 3)] == [True] * 3
  checkpoints.close()
  assert checkpoint.saved_steps(checkpoints.directory) == [1, 2, 3]
  pattern = r"Saving step (.) took ([\d.]+) s, the next was due after ([\d.]+) s: training waited .*"
  words = [re.fullmatch(pattern, line) for line in lines]
  assert [found and found[1] for found in words] == ["1", "2"]
  assert all(found and float(found[2]) >= 0.3 > float(found[3]) for found in words)
