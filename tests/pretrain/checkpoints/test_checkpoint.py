"""Run with pytest (on 8 fake CPU devices, see tests/conftest.py)."""

import contextlib
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from data.errors import DataError, StorageError
from pretrain import optim
from pretrain.checkpoints import checkpoint, integrity
from pretrain.checkpoints.checkpoint import Checkpoints, load_params, read_meta, step_path
from pretrain.mesh import sharding

ROOT = Path(__file__).parents[3]
META = {"config": {"seed": 3, "generator": {"mlm_layers": [4, 6]}}, "vocabulary_digest": "ab"}
SETTINGS = optim.OptimizerSettings(learning_rate=0.1, total_steps=10, schedule="constant")


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
  grads = jax.tree.map(jnp.sin, params)
  updates, state = optimizer.update(grads, state, params)
  return {"params": optax.apply_updates(params, updates), "opt_state": state, "step": jnp.int32(7)}


def target(mesh):
  abstract = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(
    lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
    abstract,
    sharding.shardings(mesh, abstract),
  )


def state_on(mesh, seed: int = 0):
  where = jax.tree.map(lambda leaf: leaf.sharding, target(mesh))
  return jax.jit(init, out_shardings=where)(jax.random.key(seed))


def assert_equal(one, other):
  assert jax.tree.structure(one) == jax.tree.structure(other)
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def mesh():
  return mesh_of(2, 2, 2)


@pytest.fixture(scope="module")
def workdir(mesh, tmp_path_factory):
  """A run with step 5; tests that damage it take a copy."""
  directory = tmp_path_factory.mktemp("run")
  checkpoints = Checkpoints(directory, every=5, keep=2)
  assert checkpoints.save(5, state_on(mesh), META)
  checkpoints.close()
  return directory


@pytest.fixture
def copied(workdir, tmp_path):
  return shutil.copytree(workdir, tmp_path / "copy")


@pytest.mark.parametrize("sizes", [(2, 2, 2), (8, 1, 1), (1, 2, 4)])
def test_state_comes_back_bit_for_bit_on_any_mesh(workdir, mesh, sizes):
  wanted = target(mesh_of(*sizes))
  state, meta = Checkpoints(workdir, every=5, keep=2).restore(wanted)
  assert_equal(state, state_on(mesh))
  assert jax.tree.map(lambda leaf: leaf.sharding, state) == jax.tree.map(lambda leaf: leaf.sharding, wanted)
  assert {name: meta[name] for name in META} == META
  assert (meta["step"], meta["format_version"]) == (5, checkpoint.FORMAT_VERSION)
  assert meta["packages"]["jax"] == jax.__version__


def test_arrays_may_be_donated_once_save_returns(mesh, tmp_path):
  checkpoints, state = Checkpoints(tmp_path, every=1, keep=1), state_on(mesh)
  checkpoints.save(1, state, META)
  jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(state)
  checkpoints.wait()
  assert_equal(checkpoints.restore(target(mesh))[0], state_on(mesh))
  checkpoints.close()


def test_newest_and_listed_steps_are_kept_and_others_not_even_begun(mesh, tmp_path):
  checkpoints, state = Checkpoints(tmp_path, every=4, keep=2, keep_steps=(3, 4)), state_on(mesh)
  saved = [step for step in range(18) if checkpoints.save(step, state, META)]
  checkpoints.wait()
  assert saved == [3, 4, 8, 12, 16]
  assert checkpoint.saved_steps(checkpoints.directory) == [3, 4, 12, 16]
  assert checkpoints.latest_step() == 16
  assert checkpoints.save(17, state, META, force=True)
  assert not checkpoints.save(17, state, META, force=True)  # still being written
  checkpoints.wait()
  assert not checkpoints.save(17, state, META, force=True)
  assert checkpoint.saved_steps(checkpoints.directory) == [3, 4, 16, 17]
  assert [read_meta(step_path(tmp_path, step))["step"] for step in (None, 16)] == [17, 16]
  checkpoints.close()


def test_parameters_are_loaded_alone_and_without_a_target(workdir, mesh):
  step = workdir / "checkpoints" / "5"
  for directory in (workdir, workdir / "checkpoints", step):
    params, meta = load_params(directory)
    assert {type(leaf) for leaf in jax.tree.leaves(params)} == {np.ndarray}
    assert_equal(params, state_on(mesh)["params"])
    assert meta["config"] == META["config"]


def test_parameters_are_loaded_where_the_optimizer_state_is_damaged(copied, mesh):
  for file in (copied / "checkpoints" / "5" / "opt_state").rglob("*"):
    if file.is_file() and file.name != checkpoint.COMMITTED:
      file.write_bytes(b"")
  assert_equal(load_params(copied)[0], state_on(mesh)["params"])


def test_steps_that_were_not_saved_whole_do_not_exist(copied, mesh):
  directory = copied / "checkpoints"
  (directory / "9").mkdir()  # a copy that was stopped
  shutil.copytree(directory / "5", directory / "8")
  (directory / "8" / "opt_state" / checkpoint.COMMITTED).unlink()
  shutil.copytree(directory / "5", directory / "7")
  (directory / "7" / checkpoint.COMMITTED).unlink()
  shutil.copytree(directory / "5", directory / "6.orbax-checkpoint-tmp")  # a save that was killed
  shutil.copytree(directory / "5", directory / "05")
  (directory / "notes.txt").write_text("mine")
  assert checkpoint.saved_steps(directory) == [5]
  checkpoints = Checkpoints(copied, every=5, keep=2)
  assert checkpoints.latest_step() == 5
  assert checkpoints.restore(target(mesh))[1]["step"] == 5
  with pytest.raises(DataError, match=r"no checkpoint of step 9 in .*; there are 5$"):
    checkpoints.restore(target(mesh), 9)


def test_what_a_killed_save_left_goes_before_the_next_save(tmp_path):
  left = tmp_path / "checkpoints" / "6.orbax-checkpoint-tmp"
  (left / "params").mkdir(parents=True)
  (left / "params" / "array").write_bytes(b"large")
  checkpoints = Checkpoints(tmp_path, every=1, keep=1)
  checkpoints.save(7, {"params": {"kernel": jnp.zeros(2)}, "step": jnp.int32(7)}, META)
  checkpoints.close()
  assert checkpoint.saved_steps(tmp_path / "checkpoints") == [7]
  assert not left.exists()


def test_what_is_not_whole_at_the_number_of_a_later_step_makes_way_once_and_is_kept(tmp_path, caplog):
  directory = tmp_path / "checkpoints"
  (directory / "6" / "params").mkdir(parents=True)  # a copy that was stopped
  (directory / "6" / "params" / "array").write_bytes(b"large")
  (directory / "6.incomplete_1").mkdir()
  moved = f"{directory}/6 is an incomplete checkpoint and was renamed to 6.incomplete_2; remove it"
  for step in (6, 7):
    checkpoints = Checkpoints(tmp_path, every=1, keep=2)
    assert [line[: len(moved)] for line in caplog.messages] == [moved]
    assert checkpoints.save(step, {"params": {"kernel": jnp.zeros(2)}, "step": jnp.int32(step)}, META)
    checkpoints.close()
  assert checkpoint.saved_steps(directory) == [6, 7]
  assert (directory / "6.incomplete_2" / "params" / "array").read_bytes() == b"large"


def test_what_is_left_of_a_removed_step_goes_with_the_next(copied, mesh, caplog):
  (copied / "checkpoints" / "4").mkdir()
  checkpoints = Checkpoints(copied, every=5, keep=2)
  checkpoints.save(10, state_on(mesh), META)
  checkpoints.close()
  assert sorted(path.name for path in (copied / "checkpoints").iterdir()) == ["10", "5"]
  assert not [record for record in caplog.records if record.name.startswith("pretrain")]


def test_nothing_there_is_an_error_that_names_the_place(tmp_path, mesh):
  checkpoints = Checkpoints(tmp_path, every=1, keep=1)
  assert checkpoints.latest_step() is None
  with pytest.raises(DataError, match=f"no checkpoint in {checkpoints.directory}; expected a workdir"):
    checkpoints.restore(target(mesh))
  with pytest.raises(DataError, match="no checkpoint in"):
    load_params(tmp_path / "nowhere")
  (tmp_path / "theirs").mkdir()
  (tmp_path / "theirs" / "model.safetensors").touch()
  with pytest.raises(DataError, match=r"theirs; import it first\n  python -m pretrain.export import"):
    load_params(tmp_path / "theirs")


@pytest.mark.parametrize("damage", ["emptied", "deleted"])
@pytest.mark.parametrize("item", ["params", "opt_state", "meta"])
def test_damaged_files_are_one_clear_line(copied, mesh, item, damage):
  for file in list((copied / "checkpoints" / "5" / item).rglob("*")):
    if file.is_file() and file.name != checkpoint.COMMITTED:
      file.unlink() if damage == "deleted" else file.write_bytes(b"")
  (
    copied / "checkpoints" / "5" / integrity.NAME
  ).unlink()  # as older versions saved; else it is noticed before
  checkpoints = Checkpoints(copied, every=5, keep=2)
  with pytest.raises(
    DataError, match=r"checkpoint .*/5.* cannot be read \(.*move its directory away"
  ) as error:
    checkpoints.restore(target(mesh))
  assert "\n" not in str(error.value)


def test_another_model_is_refused_by_name_and_shape(workdir):
  wanted = target(mesh_of(8, 1, 1))
  wanted["params"]["heads"]["clm"]["bias"] = jax.ShapeDtypeStruct((65,), jnp.float32)
  wanted["params"]["heads"]["rtd"] = {"bias": jax.ShapeDtypeStruct((1,), jnp.float32)}
  message = (
    r"heads/clm/bias has shape \(64,\), expected \(65,\); heads/rtd/bias is missing; "
    r"use the config of that run, or a new workdir"
  )
  with pytest.raises(DataError, match=message):
    Checkpoints(workdir, every=5, keep=2).restore(wanted)


def test_another_optimizer_is_refused(workdir):
  wanted = target(mesh_of(8, 1, 1))
  wanted["opt_state"] = jax.eval_shape(optax.sgd(0.1, momentum=0.9).init, wanted["params"])
  with pytest.raises(DataError, match=r"opt_state has another model or optimizer: .*; and [0-9]+ more; use"):
    Checkpoints(workdir, every=5, keep=2).restore(wanted)


@pytest.mark.parametrize("version", [99, None])
def test_unknown_format_versions_are_refused(copied, version):
  path = copied / "checkpoints" / "5" / "meta" / "metadata"
  path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": version}))
  (copied / "checkpoints" / "5" / integrity.NAME).unlink()  # it would notice the change
  with pytest.raises(DataError, match=f"has format version {version}; expected 1"):
    load_params(copied)
  with pytest.raises(DataError, match="format version"):
    Checkpoints(copied, every=5, keep=2).restore({"params": {}})


def test_workdir_that_cannot_be_written_is_refused_at_once(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(StorageError, match=f"cannot write to {tmp_path}/file/checkpoints .*another --workdir"):
    Checkpoints(tmp_path / "file", every=1, keep=1)


DISK_FULL = """
  import resource, sys, time
  import jax
  from data.errors import StorageError
  from pretrain.checkpoints.checkpoint import Checkpoints
  checkpoints = Checkpoints(sys.argv[1], every=1, keep=2)
  state = {"params": {"kernel": jax.random.normal(jax.random.key(0), (500, 500))}, "opt_state": {}}
  checkpoints.save(1, state, {})
  checkpoints.wait()
  checkpoints.check()
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
  checkpoints.save(2, state, {})
  last = time.monotonic() + 60
  try:
    while time.monotonic() < last:  # steps go on, and none waits
      checkpoints.check()
      time.sleep(0.01)
  except StorageError as error:
    print(error)
  checkpoints.close()
  print(checkpoints.latest_step())
"""


def test_a_save_may_follow_an_exception_that_the_caller_handles(mesh, tmp_path):
  checkpoints = Checkpoints(tmp_path, every=5, keep=2)
  try:
    raise LookupError("something else")
  except LookupError:
    with contextlib.suppress(StorageError):
      checkpoints.save(5, state_on(mesh), META)
      checkpoints.close()
  assert checkpoints.latest_step() == 5


def test_save_that_fails_in_the_background_is_one_line_and_leaves_the_older_step(tmp_path):
  command = [sys.executable, "-c", textwrap.dedent(DISK_FULL), str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert done.returncode == 0, done.stderr
  message, latest = done.stdout.splitlines()
  assert message.startswith(f"cannot save to {tmp_path}/checkpoints (")
  assert latest == "1"
