"""A new phase has the weights of the one before, and nothing else of it; kills do not matter."""

import dataclasses
import shutil

import numpy as np
import pytest

from data import command, manifest
from data.errors import ConfigError, DataError
from pretrain import train
from pretrain.checkpoints import checkpoint, phases, resume
from pretrain.checkpoints import workdir as workdir_files
from pretrain.export.card import history
from tests.pretrain.small_run import saved_params, shared_run, small_config

FIELDS = {"train.total_steps": 3, "train.checkpoint_every": 2, "train.eval_batches": 0, "seed": 7}


@pytest.fixture
def run(finished, tmp_path):
  """A copy of a finished run of six steps, to be changed."""
  return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def start(small_records, monkeypatch):
  """Trains in a workdir with another seed; what it said."""
  monkeypatch.setattr(train, "make_run", shared_run)

  def train_there(workdir, *, new_phase=True, say=None, **fields):
    said, config = [], small_config("mlm", small_records, FIELDS | fields)

    def log(line):
      said.append(line)
      if say:
        say(line)

    assert train.train(config, str(workdir), ledger=True, new_phase=new_phase, log=log) == 0
    return said

  return train_there


def _first_params(finished, workdir, start, **options):
  """What the new phase begins with: its parameters before the first update."""
  begun = {}
  first_state = train.Training._first_state

  def noted(training):
    made = first_state(training)
    begun["step"], begun["token"] = (
      int(made[0].step),
      np.asarray(made[0].params["encoder"]["embeddings"]["token"]["embedding"]),
    )
    begun["moments"] = max(float(np.abs(leaf).max()) for leaf in train.jax.tree.leaves(made[0].opt_state))
    return made

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train.Training, "_first_state", noted)
    said = start(workdir, **options)
  return begun, said


def test_a_new_phase_has_the_weights_and_nothing_else(run, finished, start):
  begun, said = _first_params(finished, run, start)
  assert begun["step"] == 0 and begun["moments"] == 0
  np.testing.assert_array_equal(begun["token"], saved_params(finished)["encoder/embeddings/token/embedding"])
  assert any(
    "A new phase begins with the weights of step 6; what was before is in phase_1" in line for line in said
  )
  assert checkpoint.saved_steps(run / "phase_1" / "checkpoints") == [1, 4, 6]
  for name in ("metrics.jsonl", "ledger.jsonl", "config.json"):
    assert (run / "phase_1" / name).read_bytes() == (finished / name).read_bytes()
  assert checkpoint.saved_steps(run / "checkpoints") == [2, 3]
  meta = checkpoint.read_meta(checkpoint.step_path(run))
  assert meta["started_from"][phases.FLAG] == {"recipe": "mlm", "step": 6, "started_from": {}}
  assert meta["run_id"] != checkpoint.read_meta(checkpoint.step_path(finished))["run_id"]
  (line,) = [line for line in history.training(meta, 0.0) if line.startswith("| initialised from")]
  assert "weights of the phase before: recipe `mlm`, step 6" in line
  # The same command goes on with this phase, another one begins the next.
  assert start(run)[-1] == f"{run} is finished: step 3 of 3"
  assert checkpoint.saved_steps(run / "checkpoints") == [2, 3]
  start(run, **{"data.fraction": 0.5})  # the same programs
  assert (run / "phase_2").is_dir()
  nested = checkpoint.read_meta(checkpoint.step_path(run))["started_from"][phases.FLAG]
  assert nested["started_from"][phases.FLAG]["step"] == 6


@pytest.mark.parametrize("moved", (0, 2, 5))
def test_a_kill_in_the_move_or_before_the_first_save_loses_nothing(run, finished, start, monkeypatch, moved):
  class Crash(BaseException):
    pass

  rename, number = phases.Path.rename, []

  def rename_some(path, target):
    if "phase_" in str(target):
      if len(number) == moved:
        raise Crash
      number.append(target)
    return rename(path, target)

  monkeypatch.setattr(phases.Path, "rename", rename_some)
  with pytest.raises(Crash):
    start(run)
  monkeypatch.setattr(phases.Path, "rename", rename)
  with pytest.raises(DataError, match="phase_1 is over and no later one has saved; give --new_phase"):
    start(run, new_phase=False)
  begun, _ = _first_params(finished, run, start)
  np.testing.assert_array_equal(begun["token"], saved_params(finished)["encoder/embeddings/token/embedding"])
  assert (run / "phase_1" / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
  assert not list(run.glob(".phase*"))


def test_what_cannot_begin_changes_nothing(run, tmp_path, start):
  with pytest.raises(ConfigError, match=r"--new_phase: .* holds no run"):
    start(tmp_path / "new")
  before = sorted(run.rglob("*"))
  with pytest.raises(DataError, match="has shape"):
    start(run, **{"model.mlp_size": 64})
  assert sorted(run.rglob("*")) == before
  with pytest.raises(ConfigError, match="another config"):
    start(run, new_phase=False)


def test_the_last_phase_that_is_over_is_named(tmp_path):
  phases.refuse_without_flag(tmp_path)
  for name in ("phase_2", "phase_10", "phase_9", "phase_x", "phase_11.old"):
    (tmp_path / name).mkdir()
  with pytest.raises(DataError, match="phase_10 is over and no later one has saved"):
    phases.refuse_without_flag(tmp_path)


def test_other_packages_are_named_once_they_differ():
  now = command.versions(checkpoint.PACKAGES)
  assert resume.changed_packages({"packages": now}) == [] == resume.changed_packages({})
  assert resume.changed_packages({"packages": now | {"jax": "0.1"}}) == [f"jax: 0.1 -> {now['jax']}"]


def test_leftovers_of_killed_starts_go_and_a_vocabulary_must_be_that_of_the_records(small_records, tmp_path):
  config = small_config("mlm", small_records)
  (tmp_path / "checkpoints").mkdir()
  leftovers = [tmp_path / name for name in ("config.json.12.part", "metrics.jsonl.9.part", ".writable.abc")]
  leftovers += [tmp_path / "checkpoints" / ".writable.x"]
  mine = tmp_path / "notes.part"
  for path in (*leftovers, mine):
    path.touch()
  (tmp_path / ".vocabulary.ab.part").mkdir()
  described = manifest.read(small_records).vocabulary
  workdir_files.begin(str(tmp_path), config, str(small_records / "vocabulary"), described)
  assert mine.exists() and not any(path.exists() for path in leftovers)
  assert not list(tmp_path.glob(".vocabulary*"))
  with pytest.raises(DataError, match=r"is not the vocabulary that the records beside it were made with"):
    workdir_files.begin(
      str(tmp_path),
      config,
      str(small_records / "vocabulary"),
      dataclasses.replace(described, digest="0" * 64),
    )
