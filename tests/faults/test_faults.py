"""Six kills and a stop, each at a moment of its own; every kind of damage. `make soak` does a thousand."""

import contextlib
import json
import random
import shutil
import subprocess
import sys

import jax.numpy as jnp

from data import manifest
from data.prepare import __main__ as prepare
from pretrain.checkpoints import resume
from pretrain.checkpoints.checkpoint import Checkpoints
from tests.faults import damage, soak
from tests.pretrain.conftest import ROOT


def test_a_run_that_is_killed_at_every_kind_of_moment_ends_as_if_it_had_not_been(tmp_path):
  output, folder = tmp_path / "moments.json", tmp_path / "soak"
  folder.mkdir()
  # It forks, which a process that has JAX's threads must not.
  command = [
    sys.executable,
    "-m",
    "tests.faults.soak",
    "--moments",
    f"--output={output}",
    f"--folder={folder}",
  ]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
  assert output.is_file(), done.stderr
  wrong = json.loads(output.read_text())
  assert len(wrong) == 9 and not any(wrong.values()), wrong
  assert prepare.main(soak.prepare_command(tmp_path)[3:]) == 0
  digests = [manifest.records_digest(manifest.read(place / "records")) for place in (folder, tmp_path)]
  assert digests[0] == digests[1]


def test_each_kind_of_damage_leaves_an_older_step(tmp_path):
  with contextlib.closing(Checkpoints(tmp_path / "saved", every=1, keep=3)) as checkpoints:
    for step in (1, 4, 6):
      state = {"params": {"w": jnp.arange(64.0) + step}, "opt_state": {"m": jnp.ones(step)}}
      checkpoints.save(step, state, {"run_id": "a"})
  for number, kind in enumerate(damage.KINDS):
    place = shutil.copytree(tmp_path / "saved", tmp_path / str(number))
    damage.hurt(random.Random(0), place / "checkpoints", kind, "params" if kind in damage.OF_STEPS else "")
    found = resume.newest_good_step(place)
    assert found == {"empty step above": 6, "renamed copy above": 6, "items exchanged": 1}.get(kind, 4), kind
