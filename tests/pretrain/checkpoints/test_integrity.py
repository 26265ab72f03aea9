"""Damaged, exchanged, renamed and lost checkpoints: never restored in silence, never removed."""

import json
import random
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import DataError
from pretrain.checkpoints import checkpoint, integrity, resume
from pretrain.checkpoints.checkpoint import COMMITTED, Checkpoints
from tests import lines
from tests.pretrain import small_run


def _save(place, run_id="a", steps=(5, 10)):
  checkpoints = Checkpoints(place, every=1, keep=3)
  for step in steps:
    state = {
      "params": {"w": jnp.arange(64.0) + step},
      "opt_state": {"m": jnp.ones(3)},
      "step": jnp.int32(step),
    }
    checkpoints.save(step, state, {"run_id": run_id, "config": {}})
  checkpoints.close()
  return place / "checkpoints"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  return _save(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def run(saved, tmp_path):
  """A workdir with checkpoints of steps 5 and 10."""
  shutil.copytree(saved, tmp_path / "checkpoints")
  return tmp_path


def _good(place):
  said = []
  with lines.heard(said.append):
    return resume.newest_good_step(place), said


def _refused(place) -> str:
  with pytest.raises(DataError) as refused:
    _good(place)
  return str(refused.value)


def test_every_file_of_a_step_is_listed_and_whole_steps_are_taken(run):
  step = run / "checkpoints" / "10"
  listed = json.loads((step / integrity.NAME).read_text())
  files = {path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file()}
  beside = {integrity.NAME, COMMITTED, "_CHECKPOINT_METADATA"}  # the commit writes the last two
  assert files - set(listed["files"]) == beside
  assert (listed["step"], listed["run_id"]) == (10, "a")
  assert _good(run) == (10, []) and _good(run / "nothing") == (None, [])
  assert integrity.digests(step) == listed["files"] and integrity.run_id(step) == "a"
  (step / integrity.NAME).write_text("{}")
  assert integrity.digests(step) == {}


def test_any_damage_of_any_file_is_noticed_named_and_an_older_step_is_used(run):
  generator, step = random.Random(0), run / "checkpoints" / "10"
  for name in json.loads((step / integrity.NAME).read_text())["files"]:
    original = (step / name).read_bytes()
    for kind in ("bit", "page", "cut", "gone"):
      content = bytearray(original)
      if kind == "gone":
        (step / name).unlink()
      elif not any(content):
        continue
      else:
        position = generator.choice([i for i, byte in enumerate(content) if byte])
        changed = {"bit": content[position] ^ 1, "page": 0, "cut": None}[kind]
        content[position : None if kind == "cut" else position + 1] = [] if changed is None else [changed]
        (step / name).write_bytes(content)
      found, said = _good(run)
      assert found == 5, (name, kind)
      if not name.endswith(COMMITTED) or kind != "gone":  # then it is no checkpoint at all
        assert len(said) == 1 and f"10 is damaged: {name} " in said[0], (name, kind, said)
        (run / "checkpoints" / "10.damaged_1").rename(step)
      (step / name).write_bytes(original)
  assert _good(run) == (10, [])


def test_a_damaged_list_is_damage_and_not_another_run(run):
  path = run / "checkpoints" / "10" / integrity.NAME
  content = json.loads(path.read_text())
  for changes in ({"run_id": "b"}, {"step": 11}, {"files": {}}, {"files": []}, {"list": "0"}):
    shutil.copytree(run / "checkpoints" / "10", run / "checkpoints" / "10.copy")
    path.write_text(json.dumps(content | changes))
    assert _good(run)[0] == 5, changes
    (run / "checkpoints" / "10.copy").rename(run / "checkpoints" / "10")
  path.write_text(json.dumps({name: value for name, value in content.items() if name != "list"}))
  assert _good(run)[0] == 5


def test_weights_that_are_damaged_are_not_read(run):
  path = max((run / "checkpoints/10/params").rglob("d/*"), key=lambda file: file.stat().st_size)
  content = path.read_bytes()
  path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  with pytest.raises(DataError, match=r"10 is damaged: params/.*\(its sha256 differs\)"):
    checkpoint.load_params(run)
  params, _ = checkpoint.load_params(run, 5)
  np.testing.assert_array_equal(params["w"], np.arange(64.0) + 5)


def test_steps_and_items_that_change_places_are_noticed(run):
  place = run / "checkpoints"
  shutil.copytree(place / "5", place / "99")
  step, (line,) = _good(run)
  assert step == 10 and "99 is damaged: it was saved as step 5" in line
  for item in ("params", "opt_state"):
    (place / "5" / item).rename(place / "aside")
    (place / "10" / item).rename(place / "5" / item)
    (place / "aside").rename(place / "10" / item)
  assert "are damaged (10.damaged_1, 5.damaged_1, 99.damaged_1)" in _refused(run)


def test_other_runs_lost_marks_and_lost_checkpoints_are_no_new_run(
  run, finished, small_records, tmp_path_factory
):
  other = _save(tmp_path_factory.mktemp("other"), run_id="b", steps=[20])
  shutil.copytree(other / "20", run / "checkpoints" / "20")
  assert "step 5 of run a, step 10 of run a, step 20 of run b" in _refused(run)
  shutil.rmtree(run / "checkpoints" / "20")
  for mark in run.rglob(COMMITTED):
    mark.unlink()
  for _ in range(2):
    assert "are damaged (10, 5); " in _refused(run)
  # A finished run whose checkpoints are gone does not start over.
  workdir = shutil.copytree(finished, run / "gone")
  config = small_run.small_config("mlm", small_records, {"train.total_steps": 8})
  shutil.rmtree(workdir / "checkpoints")
  logged = (workdir / "metrics.jsonl").read_bytes()
  with pytest.raises(DataError, match="has_saved"):
    small_run.run_training(config, workdir)
  assert (workdir / "metrics.jsonl").read_bytes() == logged


def test_a_list_that_is_gone_is_damage(run):
  shutil.copytree(run / "checkpoints/5", run / "checkpoints/99")
  for step in (99, 10):
    (run / f"checkpoints/{step}" / integrity.NAME).unlink()
  step, said = _good(run)
  assert step == 5 and "99 is damaged: sha256.json is gone" in said[0]
  assert "10 is damaged: sha256.json is gone" in said[1]
  (run / "checkpoints/5" / integrity.NAME).unlink()
  with pytest.raises(DataError, match=r"5 is damaged: sha256.json is gone"):
    checkpoint.load_params(run)
