"""25 kills, some inside saves and some on damaged checkpoints; stops; 20 damages. `make soak` does more."""

import contextlib
import json
import random
import re
import shutil
import subprocess
import sys

import jax.numpy as jnp
import pytest

from pretrain.checkpoints import resume
from pretrain.checkpoints.checkpoint import Checkpoints
from tests.faults import damage
from tests.pretrain.conftest import ROOT

TIMEOUT = 900  # seconds; a minute where nothing else runs
CYCLES = {"kill": 25, "term": 3, "damage": 20}


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
  """What the soak counted; it forks, which a process that has JAX's threads must not."""
  output = tmp_path_factory.mktemp("soak") / "soak.json"
  command = [sys.executable, "-m", "tests.faults.soak", "--seed=1", f"--output={output}"]
  command += ["--kinds", *(f"{kind}={n}" for kind, n in CYCLES.items())]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
  assert output.is_file(), done.stderr
  return json.loads(output.read_text())["kinds"]


@pytest.mark.parametrize("kind", CYCLES)
def test_runs_that_are_attacked_end_as_if_they_had_not_been(figures, kind):
  assert figures[kind]["cycles"] == CYCLES[kind]
  assert figures[kind]["failures"] == []


def test_kills_fall_into_saves_and_elsewhere_and_on_damage(figures):
  counts = figures["kill"]["counts"]
  assert min(counts[what] for what in ("in a save", "at any time", "on a damaged checkpoint")) >= 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """The checkpoints of steps 1, 4 and 6."""
  workdir = tmp_path_factory.mktemp("saved")
  with contextlib.closing(Checkpoints(workdir, every=1, keep=3)) as checkpoints:
    for step in (1, 4, 6):
      state = {"params": {"w": jnp.arange(64.0) + step}, "opt_state": {"m": jnp.ones(step)}}
      checkpoints.save(step, state, {"run_id": "a"})
  return workdir / "checkpoints"


@pytest.mark.parametrize("kind", damage.KINDS)
def test_each_kind_of_damage_leaves_an_older_step(saved, tmp_path, kind):
  shutil.copytree(saved, tmp_path / "checkpoints")
  damage.hurt(random.Random(0), tmp_path / "checkpoints", kind, "params" if kind in damage.OF_STEPS else "")
  found = resume.newest_good_step(tmp_path)
  assert found == {"empty step above": 6, "renamed copy above": 6, "items exchanged": 1}.get(kind, 4)


def test_every_test_that_the_page_names_is_there():
  text = (ROOT / "docs" / "lab" / "reliability.md").read_text(encoding="utf-8")
  named = re.findall(r"([\w/.]+)::(test_\w+)", text)
  assert len(named) > 50
  places = {"P": "tests/pretrain", "D": "tests/data", "F": "tests/faults/test_faults.py"}
  for path, name in named:
    first, _, rest = path.partition("/")
    file = ROOT / places.get(first, first) / rest
    assert f"def {name}(" in file.read_text(encoding="utf-8"), (path, name)
