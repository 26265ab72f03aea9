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

STEPS = (5, 10)


def _save(place, run_id="a", steps=STEPS):
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
  """A workdir with checkpoints of steps 5 and 10, and the lines logged."""
  shutil.copytree(saved, tmp_path / "checkpoints")
  return tmp_path


def _good(place):
  said = []
  with lines.heard(said.append):
    return resume.newest_good_step(place), said


def test_every_file_of_a_step_is_listed_and_whole_steps_are_taken(run):
  listed = json.loads((run / "checkpoints" / "10" / integrity.NAME).read_text())
  there = {
    path.relative_to(run / "checkpoints" / "10").as_posix() for path in (run / "checkpoints/10").rglob("*")
  }
  files = {name for name in there if (run / "checkpoints" / "10" / name).is_file()}
  beside = {integrity.NAME, COMMITTED, "_CHECKPOINT_METADATA"}  # the commit writes the last two
  assert files - set(listed["files"]) == beside
  assert (listed["step"], listed["run_id"]) == (10, "a")
  assert _good(run) == (10, [])
  assert _good(run / "nothing") == (None, [])


def test_any_damage_of_any_file_is_noticed_named_and_an_older_step_is_used(run, saved):
  generator = random.Random(0)
  names = json.loads((saved / "10" / integrity.NAME).read_text())["files"]
  for name in names:
    for kind in ("bit", "page", "cut", "gone"):
      shutil.rmtree(run / "checkpoints")
      shutil.copytree(saved, run / "checkpoints")
      path = run / "checkpoints" / "10" / name
      content = bytearray(path.read_bytes())
      if kind == "gone":
        path.unlink()
      elif not any(content):
        continue
      else:
        position = generator.choice([i for i, byte in enumerate(content) if byte])
        changed = {"bit": content[position] ^ 1, "page": 0, "cut": None}[kind]
        content[position : None if kind == "cut" else position + 1] = [] if changed is None else [changed]
        path.write_bytes(content)
      if path.name == COMMITTED and kind == "gone":  # then it is no checkpoint at all
        assert _good(run)[0] == 5
        continue
      step, (line,) = _good(run)
      assert step == 5, (name, kind)
      assert f"10 is damaged: {name} " in line and "and was renamed to 10.damaged_1; remove it" in line
      assert (run / "checkpoints" / "10.damaged_1").is_dir()


def test_a_damaged_list_is_damage_and_not_another_run(run):
  path = run / "checkpoints" / "10" / integrity.NAME
  content = json.loads(path.read_text())
  for changes in ({"run_id": "b"}, {"step": 11}, {"files": {}}, {"files": []}, {"list": "0"}):
    shutil.copytree(run / "checkpoints" / "10", run / "checkpoints" / "10.copy")
    path.write_text(json.dumps(content | changes))
    assert _good(run)[0] == 5, changes
    (run / "checkpoints" / "10.copy").rename(run / "checkpoints" / "10")
  path.write_text(json.dumps({name: value for name, value in content.items() if name != "list"}))
  assert _good(run)[0] == 10  # as an older version wrote it


def test_weights_that_are_damaged_are_not_read(run):
  path = max((run / "checkpoints/10/params").rglob("d/*"), key=lambda file: file.stat().st_size)
  content = path.read_bytes()
  path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  with pytest.raises(
    DataError,
    match=r"10 is damaged: params/.*\(its sha256 differs\); to use an older one",
  ):
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
  with pytest.raises(
    DataError, match=r"all checkpoints of this run are damaged \(10.damaged_1, 5.damaged_1, 99"
  ):
    _good(run)


def test_a_checkpoint_of_another_run_is_not_taken_for_this_ones(run, tmp_path_factory):
  other = _save(tmp_path_factory.mktemp("other"), run_id="b", steps=[20])
  shutil.copytree(other / "20", run / "checkpoints" / "20")
  with pytest.raises(DataError, match="step 5 of run a, step 10 of run a, step 20 of run b"):
    _good(run)


def test_a_copy_without_commit_marks_is_no_new_run(run):
  for mark in run.rglob(COMMITTED):
    mark.unlink()
  for _ in range(2):
    with pytest.raises(DataError, match=r"all checkpoints of this run are damaged \(10, 5\); restore one"):
      _good(run)


def _without_lists(run, **meta) -> None:
  """Removes all lists, as a copy that leaves out *.json does, and changes the steps' meta."""
  for path in run.rglob(integrity.NAME):
    path.unlink()
  for path in run.rglob("meta/metadata"):
    path.write_text(json.dumps(json.loads(path.read_text()) | meta))


def test_checkpoints_of_an_older_version_have_no_list_and_are_taken(run):
  _without_lists(run, run_id="")
  assert _good(run) == (10, [])


def test_a_list_that_is_gone_is_noticed_and_so_is_a_step_of_another_number(run):
  shutil.copytree(run / "checkpoints/5", run / "checkpoints/99")
  (run / "checkpoints/99" / integrity.NAME).unlink()
  (run / "checkpoints/10" / integrity.NAME).unlink()
  step, lines = _good(run)
  assert step == 5 and "99 is damaged: it was saved as step 5" in lines[0]
  assert "10 is damaged: sha256.json is gone" in lines[1]
  (run / "checkpoints/5" / integrity.NAME).unlink()
  with pytest.raises(DataError, match=r"5 is damaged: sha256.json is gone; to use an older one"):
    checkpoint.load_params(run)


def test_a_finished_run_whose_checkpoints_are_gone_does_not_start_over(small_records, tmp_path):
  config = small_run.small_config("mlm", small_records, {"train.total_steps": 2})
  assert small_run.run_training(config, tmp_path) == 0
  shutil.rmtree(tmp_path / "checkpoints")
  logged = (tmp_path / "metrics.jsonl").read_bytes()
  with pytest.raises(DataError, match=r"had checkpoints of a run \(file has_saved\), but none is left"):
    small_run.run_training(config, tmp_path)
  assert (tmp_path / "metrics.jsonl").read_bytes() == logged
