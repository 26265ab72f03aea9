"""Continued pretraining: what `train.init_from` takes from another checkpoint, says and refuses."""

import shutil

import jax
import numpy as np
import pytest

from data import manifest, vocabulary
from data.errors import ConfigError, DataError
from data.vocabulary.extension import Extension
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.checkpoint import Checkpoints, read_meta, step_path
from pretrain.mesh import trees
from tests import lines
from tests.pretrain.small_run import run_training, saved_params, small_config, small_run

_SHORT = {"train.total_steps": 2, "train.eval_batches": 0}


def _digest(directory) -> str:
  return manifest.read(directory).vocabulary.digest


def _taken(recipe, records, fields, *, digest=None, say=lambda line: None) -> dict[str, np.ndarray]:
  run = small_run(small_config(recipe, records, fields))
  wanted, origins = run.abstract_state.params, warm_start.origins(run.config.to_dict())
  with lines.heard(say):
    params = warm_start.load_into(wanted, origins, vocabulary_digest=digest or _digest(records))
  assert trees.by_path(params).keys() == trees.by_path(wanted).keys()
  leaves = trees.by_path(params).items()
  return {name: np.asarray(leaf) for name, leaf in leaves if isinstance(leaf, jax.Array)}


@pytest.fixture(scope="module")
def union(small_records, tmp_path_factory):
  """The workdir of a run with a generator, a mixture and three heads that saved its first state."""
  workdir = tmp_path_factory.mktemp("union")
  config = small_config("union", small_records, {"seed": 1, "objectives.scl.head": "projection"})
  _save(workdir, config, small_run(config).init_state()._asdict(), small_records)
  return workdir


def _save(workdir, config, state, records) -> None:
  checkpoints = Checkpoints(workdir, every=1, keep=1)
  meta = {"config": config.to_dict(), "vocabulary_digest": _digest(records)}
  assert checkpoints.save(1, state, meta)
  checkpoints.close()


def test_the_same_recipe_takes_everything(small_records, union):
  said = []
  fields = {"train.init_from": str(union), "objectives.scl.head": "projection"}
  taken = _taken("union", small_records, fields, say=said.append)
  saved = saved_params(union)
  assert taken.keys() == saved.keys()
  for name, value in taken.items():
    np.testing.assert_array_equal(value, saved[name], err_msg=name)
  (line,) = said
  assert f"Starting from {union}, step 1: loaded encoder, heads/" in line
  assert "fresh: optimizer, step; unused: nothing" in line


def test_what_does_not_fit_starts_fresh_and_is_said(small_records, union):
  said = []
  fields = {"train.init_from": str(union), "model.num_layers": 2, "objectives.scl.weight": 0.0}
  taken = _taken("coco_lm", small_records, fields, say=said.append)
  assert {name.split("/")[0] for name in taken} == {"encoder", "heads"}
  (line,) = said
  assert "fresh: generator (trunk/" in line and "has shape" in line
  assert line.endswith("unused: generator, generator/mixture, heads/scl")


def test_a_checkpoint_without_a_generator_gives_the_encoder(small_records, finished):
  said = []
  taken = _taken("coco_lm", small_records, {"train.init_from": str(finished)}, say=said.append)
  saved = saved_params(finished)
  assert taken.keys() == {name for name in saved if name.startswith("encoder/")}
  assert "generator (not in it)" in said[0] and "unused: heads/mlm" in said[0]


def test_a_generator_of_its_own_goes_over_that_of_the_checkpoint(small_records, union, finished):
  fields = {"train.init_from": str(union), "objectives.scl.head": "projection", "model.num_layers": 2}
  fields |= {"generator.init_from": str(finished), "generator.num_layers": 1, "generator.mlm_layers": ()}
  fields |= {"generator.mixture": "none"}
  taken = _taken("union", small_records, fields)
  name = "trunk/layers/up/kernel"
  np.testing.assert_array_equal(taken[f"generator/{name}"], saved_params(finished)[f"encoder/{name}"])
  np.testing.assert_array_equal(taken[f"encoder/{name}"], saved_params(union)[f"encoder/{name}"])


def test_another_vocabulary_is_refused(small_records, finished):
  with pytest.raises(DataError, match=r"train\.init_from=.*is not that of the records \(cccccccccccc"):
    _taken("mlm", small_records, {"train.init_from": str(finished)}, digest="c" * 64)


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"model.mlp_size": 64}, r"\(encoder\): trunk/layers/down/kernel has shape \(1, 32, 16\), expected"),
    ({"model.num_layers": 2}, r"has shape .*; and \d+"),
    ({"model.relative_position": "none"}, "relative_position: t5 there, none here"),
    ({"model.relative_position": "official"}, "relative_position: t5 there, official here"),
    ({"model.relative_max_distance": 17}, "relative_max_distance: 16 there, 17 here"),
    ({"model.layer_norm_eps": 1e-12}, "layer_norm_eps"),
    ({"train.init_from": "nowhere"}, "no checkpoint in .*nowhere"),
  ],
)
def test_another_encoder_is_refused(small_records, finished, fields, message):
  with pytest.raises(DataError, match=message):
    _taken("mlm", small_records, {"train.init_from": str(finished)} | fields)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_parameters_that_are_not_finite_are_refused(small_records, tmp_path, value):
  config = small_config("mlm", small_records, {})
  state = small_run(config).init_state()._asdict()
  table = state["params"]["encoder"]["embeddings"]["token"]["embedding"]
  state["params"]["encoder"]["embeddings"]["token"]["embedding"] = table.at[3, 2].set(value)
  _save(tmp_path, config, state, small_records)
  with pytest.raises(DataError, match="embeddings/token/embedding contains NaN or infinity; use an earlier"):
    _taken("mlm", small_records, {"train.init_from": str(tmp_path)})


def test_a_run_begins_with_it_and_cannot_change_it_later(small_records, finished, tmp_path):
  said = []
  fields = _SHORT | {"train.init_from": str(finished), "optimizer.learning_rate": 1e-12}
  assert run_training(small_config("mlm", small_records, fields), tmp_path, say=said.append) == 0
  assert any(line.startswith(f"Starting from {finished}, step 6: loaded encoder, heads/mlm") for line in said)
  saved, end = saved_params(finished), saved_params(tmp_path)
  for name, value in end.items():
    np.testing.assert_allclose(value, saved[name], atol=1e-9, err_msg=name)
  started_from = {"train.init_from": {"recipe": "mlm", "step": 6, "started_from": {}}}
  assert read_meta(step_path(tmp_path))["started_from"] == started_from
  changed = small_config("mlm", small_records, fields | {"train.init_from": "", "train.total_steps": 3})
  with pytest.raises(ConfigError, match=r"train\.init_from: .* -> "):
    run_training(changed, tmp_path)


def test_a_vocabulary_that_extends_that_of_the_checkpoint_starts_from_its_rows(
  small_records, union, tmp_path
):
  def extending(name, digest):
    shutil.copytree(small_records / "vocabulary", tmp_path / name)
    old = vocabulary.load(small_records / "vocabulary")
    extension = Extension(digest or old.digest, old.size, {7: (8, 9), old.size - 1: (5, 6)})
    return vocabulary.write_description(tmp_path / name, kind=old.kind, cased=old.cased, extends=extension)

  fields = {"train.init_from": str(union), "objectives.scl.head": "projection"}
  rows = small_config("union", small_records, {}).model.vocab_size + 64
  run = small_run(small_config("union", small_records, fields | {"model.vocab_size": rows}))
  said, origins = [], warm_start.origins(run.config.to_dict())
  made = extending("v", "")
  with lines.heard(said.append):
    params = warm_start.load_into(
      run.abstract_state.params,
      origins,
      vocabulary_digest=made.digest,
      vocabulary_directory=str(tmp_path / "v"),
    )
  assert f"train.init_from={union}: 2 new words have the mean rows of their old pieces" in said[0]
  assert "fresh: optimizer, step; " in said[1]
  taken, saved = trees.by_path(params), saved_params(union)
  wider = {name for name, leaf in taken.items() if leaf.shape != saved[name].shape}
  assert wider == {"encoder/embeddings/token/embedding", "generator/mlm_head/bias", "heads/clm/bias"}
  for name in wider:
    assert len(taken[name]) == rows
    np.testing.assert_allclose(taken[name][7], saved[name][[8, 9]].mean(0), rtol=1e-6)
    np.testing.assert_array_equal(taken[name][:7], saved[name][:7])
  other = extending("w", "0" * 64)
  with pytest.raises(DataError, match=r"its vocabulary \(.*\) is not that of the records"):
    warm_start.load_into(
      run.abstract_state.params,
      origins,
      vocabulary_digest=other.digest,
      vocabulary_directory=str(tmp_path / "w"),
    )
