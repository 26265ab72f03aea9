"""Saving and restoring steps on 8 fake CPU devices; damage is never restored in silence; a full disk."""

import json
import random
import re
import resource
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from data.errors import DataError, StorageError
from pretrain import optim
from pretrain.checkpoints import checkpoint, resume
from pretrain.checkpoints.checkpoint import COMMITTED, Checkpoints, load_params, read_meta, step_path
from pretrain.mesh import sharding
from tests import lines
from tests.pretrain import small_run
from tests.pretrain.processes import running

META = {"config": {"seed": 3, "generator": {"mlm_layers": [4, 6]}}, "vocabulary_digest": "ab"}
SETTINGS = optim.OptimizerSettings(learning_rate=0.1, total_steps=10, schedule="constant")
SMALL = {"params": {"kernel": jnp.arange(2.0)}, "step": jnp.int32(7)}


def mesh_of(*sizes):
  return sharding.make_mesh(sharding.MeshSettings(*sizes))


def init(key):
  keys = jax.random.split(key, 3)
  params = {
    "encoder": {
      "embeddings": {"token": {"embedding": jax.random.normal(keys[0], (64, 16))}},
      "trunk": {"layers": {"up": {"kernel": jax.random.normal(keys[1], (2, 16, 32))}}},
    },
    "heads": {"clm": {"bias": jax.random.normal(keys[2], (64,))}},
  }
  optimizer, _ = optim.make_optimizer(SETTINGS, params=params, frozen=lambda path: path.endswith("embedding"))
  state = optimizer.init(params)
  updates, state = optimizer.update(jax.tree.map(jnp.sin, params), state, params)
  return {"params": optax.apply_updates(params, updates), "opt_state": state, "step": jnp.int32(7)}


def target(mesh):
  abstract = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(
    lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
    abstract,
    sharding.shardings(mesh, abstract),
  )


def assert_equal(one, other):
  assert jax.tree.structure(one) == jax.tree.structure(other)
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def state():
  """On the host."""
  where = jax.tree.map(lambda leaf: leaf.sharding, target(mesh_of(2, 2, 2)))
  return jax.device_get(jax.jit(init, out_shardings=where)(jax.random.key(0)))


def on_devices(state):
  return jax.tree.map(
    lambda leaf, wanted: jax.device_put(leaf, wanted.sharding), state, target(mesh_of(2, 2, 2))
  )


@pytest.fixture(scope="module")
def workdir(state, tmp_path_factory):
  """A run with step 5; tests that damage it take a copy."""
  directory = tmp_path_factory.mktemp("run")
  checkpoints = Checkpoints(directory, every=5, keep=2)
  given = on_devices(state)
  assert checkpoints.save(5, given, META)
  # Arrays may be donated once save returns.
  jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(given)
  checkpoints.close()
  return directory


@pytest.fixture
def copied(workdir, tmp_path):
  return shutil.copytree(workdir, tmp_path / "copy")


def test_state_comes_back_bit_for_bit_on_any_mesh(workdir, state):
  for sizes in ((2, 2, 2), (8, 1, 1), (1, 2, 4)):
    wanted = target(mesh_of(*sizes))
    found, meta = Checkpoints(workdir, every=5, keep=2).restore(wanted)
    assert_equal(found, state)
    places = [jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (found, wanted)]
    assert places[0] == places[1], sizes
  assert {name: meta[name] for name in META} == META
  assert (meta["step"], meta["format_version"]) == (5, checkpoint.FORMAT_VERSION)
  assert meta["packages"]["jax"] == jax.__version__


def test_newest_and_listed_steps_are_kept_and_others_not_even_begun(tmp_path):
  checkpoints = Checkpoints(tmp_path, every=4, keep=2, keep_steps=(3, 4))
  assert not checkpoints.has_committed and checkpoints.latest_step() is None
  assert [step for step in range(18) if checkpoints.save(step, SMALL, META)] == [3, 4, 8, 12, 16]
  checkpoints.wait()
  assert checkpoint.saved_steps(checkpoints.directory) == [3, 4, 12, 16]
  assert checkpoints.latest_step() == 16 and checkpoints.has_committed
  assert checkpoints.save(17, SMALL, META, force=True)
  assert not checkpoints.save(17, SMALL, META, force=True)  # still being written
  checkpoints.wait()
  assert not checkpoints.save(17, SMALL, META, force=True)
  assert checkpoint.saved_steps(checkpoints.directory) == [3, 4, 16, 17]
  assert [read_meta(step_path(tmp_path, step))["step"] for step in (None, 16)] == [17, 16]
  checkpoints.close()


def test_parameters_are_loaded_alone_also_where_the_optimizer_state_is_damaged(copied, state):
  step = copied / "checkpoints" / "5"
  for file in (step / "opt_state").rglob("*"):
    if file.is_file() and file.name != COMMITTED:
      file.write_bytes(b"")
  for directory in (copied, copied / "checkpoints", step):
    params, meta = load_params(directory)
    assert {type(leaf) for leaf in jax.tree.leaves(params)} == {np.ndarray}
    assert_equal(params, state["params"])
    assert meta["config"] == META["config"]


def test_steps_that_were_not_saved_whole_do_not_exist(copied):
  directory = copied / "checkpoints"
  (directory / "9").mkdir()  # a copy that was stopped
  for name, mark in (("8", "opt_state"), ("7", ""), ("6.orbax-checkpoint-tmp", None), ("05", None)):
    shutil.copytree(directory / "5", directory / name)
    if mark is not None:
      (directory / name / mark / COMMITTED).unlink()
  (directory / "notes.txt").write_text("mine")
  assert checkpoint.saved_steps(directory) == [5] and checkpoint.newest_step(copied) == 5
  checkpoints = Checkpoints(copied, every=5, keep=2)
  assert checkpoints.restore(target(mesh_of(8, 1, 1)))[1]["step"] == 5
  with pytest.raises(DataError, match=r"no checkpoint of step 9 in .*; there are 5$"):
    checkpoints.restore(target(mesh_of(8, 1, 1)), 9)


def test_what_a_killed_save_left_goes_and_what_else_is_not_whole_is_kept_by_another_name(tmp_path):
  directory = tmp_path / "checkpoints"
  for name in ("4", "6", "5.orbax-checkpoint-tmp"):  # 6: a copy that was stopped
    (directory / name / "params").mkdir(parents=True)
    (directory / name / "params" / "array").write_bytes(b"large")
  (directory / "6.incomplete_1").mkdir()
  for step in (6, 7):
    checkpoints = Checkpoints(tmp_path, every=1, keep=2)
    assert checkpoints.save(step, SMALL, META)
    checkpoints.close()
  assert checkpoint.saved_steps(directory) == [6, 7]
  assert (directory / "6.incomplete_2" / "params" / "array").read_bytes() == b"large"
  assert not (directory / "5.orbax-checkpoint-tmp").exists()


def _error(call, error=DataError) -> str:
  with pytest.raises(error) as refused:
    call()
  return str(refused.value)


def test_what_is_not_there_and_what_cannot_be_written_are_refused(tmp_path):
  checkpoints = Checkpoints(tmp_path, every=1, keep=1)
  assert f"no checkpoint in {checkpoints.directory}; " in _error(lambda: checkpoints.restore({"params": {}}))
  assert "no checkpoint in" in _error(lambda: load_params(tmp_path / "nowhere"))
  (tmp_path / "theirs").mkdir()
  (tmp_path / "theirs" / "model.safetensors").touch()
  assert "\n  python -m pretrain.export import --from=" in _error(lambda: load_params(tmp_path / "theirs"))
  (tmp_path / "file").touch()
  assert "another --workdir" in _error(lambda: Checkpoints(tmp_path / "file", every=1, keep=1), StorageError)


def test_another_model_another_optimizer_and_unknown_formats_are_refused(workdir, copied):
  for part, name, leaf in (
    ("heads/clm/bias has shape (64,), expected (65,)", "clm", jax.ShapeDtypeStruct((65,), jnp.float32)),
    ("heads/rtd/bias is missing", "rtd", jax.ShapeDtypeStruct((1,), jnp.float32)),
    ("opt_state has another model or optimizer", "", None),
  ):
    wanted = target(mesh_of(8, 1, 1))
    if name:
      wanted["params"]["heads"][name] = {"bias": leaf}
    else:
      wanted["opt_state"] = jax.eval_shape(optax.sgd(0.1, momentum=0.9).init, wanted["params"])
    assert part in _error(lambda tree=wanted: Checkpoints(workdir, every=5, keep=2).restore(tree))
  path = copied / "checkpoints" / "5" / "meta" / "metadata"
  for version in (99, None):
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": version}))
    checkpoint.seal(copied / "checkpoints" / "5", step=5, run_id="a")  # else it would notice the change
    assert f"has format version {version}; expected 1" in _error(lambda: load_params(copied))


def test_a_disk_that_fills_ends_the_command_with_one_line_and_the_older_step_stays(small_records, tmp_path):
  fields = {"train.total_steps": 100_000, "train.checkpoint_every": 20, "data.directory": small_records}
  with running(1, tmp_path / "run", *[f"--config.{name}={value}" for name, value in fields.items()]) as one:
    one.wait_for_step(30)
    while not checkpoint.saved_steps(tmp_path / "run" / "checkpoints"):
      assert one.started[0].poll() is None
      time.sleep(0.01)
    # Less than a checkpoint: a full disk under checkpoints and log alike.
    resource.prlimit(one.started[0].pid, resource.RLIMIT_FSIZE, (8_000, 8_000))
    ((code, _, err),) = one.ends()
  assert code == 5 and "Trace" not in err, err
  (line,) = [line for line in err.splitlines() if line.startswith("error:")]
  assert re.match("error: (cannot save to .*|.*: cannot be written) .*check space", line)
  assert (resume.newest_good_step(tmp_path / "run") or 0) >= 20


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
  said: list[str] = []
  with lines.heard(said.append):
    return resume.newest_good_step(place), said


def test_every_file_of_a_step_is_listed_and_whole_steps_are_taken(run):
  step = run / "checkpoints" / "10"
  listed = json.loads((step / checkpoint.DIGESTS).read_text())
  files = {path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file()}
  beside = {checkpoint.DIGESTS, COMMITTED, "_CHECKPOINT_METADATA"}  # the commit writes the last two
  assert files - set(listed["files"]) == beside
  assert (listed["step"], listed["run_id"]) == (10, "a")
  assert _good(run) == (10, []) and _good(run / "nothing") == (None, [])
  assert checkpoint.digests(step) == listed["files"] and checkpoint.run_id(step) == "a"
  (step / checkpoint.DIGESTS).write_text("{}")
  assert checkpoint.digests(step) == {}


def test_any_damage_of_any_file_is_noticed_named_and_an_older_step_is_used(run):
  generator, step = random.Random(0), run / "checkpoints" / "10"
  for name in json.loads((step / checkpoint.DIGESTS).read_text())["files"]:
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
  path = run / "checkpoints" / "10" / checkpoint.DIGESTS
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
  assert "are damaged (10.damaged_1, 5.damaged_1, 99.damaged_1)" in _error(lambda: _good(run))


def test_other_runs_lost_marks_and_lost_checkpoints_are_no_new_run(
  run, finished, small_records, tmp_path_factory
):
  other = _save(tmp_path_factory.mktemp("other"), run_id="b", steps=[20])
  shutil.copytree(other / "20", run / "checkpoints" / "20")
  assert "step 5 of run a, step 10 of run a, step 20 of run b" in _error(lambda: _good(run))
  shutil.rmtree(run / "checkpoints" / "20")
  for mark in run.rglob(COMMITTED):
    mark.unlink()
  for _ in range(2):
    assert "are damaged (10, 5); " in _error(lambda: _good(run))
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
    (run / f"checkpoints/{step}" / checkpoint.DIGESTS).unlink()
  step, said = _good(run)
  assert step == 5 and "99 is damaged: sha256.json is gone" in said[0]
  assert "10 is damaged: sha256.json is gone" in said[1]
  (run / "checkpoints/5" / checkpoint.DIGESTS).unlink()
  for read in (lambda: load_params(run), lambda: Checkpoints(run, every=5, keep=2).restore({"params": {}})):
    found = _error(read)
    assert re.match(r"checkpoint .*/5 is damaged: sha256.json is gone; .*move its directory away$", found)
