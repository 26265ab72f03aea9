"""Checkpoints of a run whose encoder stores a difference of token tables (GDES): readers get the sum."""

from unittest import mock

import jax
import numpy as np
import pytest

from data import manifest
from data.records import PackedRecords
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.checkpoint import load_params
from pretrain.checkpoints.manage import average
from pretrain.checkpoints.opened import open_generator, open_run
from pretrain.checkpoints.saved_model import open_model
from pretrain.corruption import token_tables
from pretrain.logs.probes import Probes
from pretrain.mesh import trees
from tests.pretrain.small_run import LENGTH, run_training, saved_params, small_config, small_run

BASE, DIFFERENCE = "generator/embeddings/token/embedding", "encoder/embeddings/token/difference"
TABLE = "encoder/embeddings/token/embedding"


@pytest.fixture(scope="module")
def gdes(small_records, tmp_path_factory):
  """The workdir of a finished run of four steps."""
  workdir = tmp_path_factory.mktemp("gdes") / "run"
  fields = {"train.total_steps": 4, "train.eval_batches": 0, "seed": 1}
  assert run_training(small_config("gdes", small_records, fields), workdir) == 0
  return workdir


def _whole(workdir, step=None) -> np.ndarray:
  saved = saved_params(workdir, step)
  assert np.any(saved[DIFFERENCE]) and TABLE not in saved
  return saved[BASE] + saved[DIFFERENCE]


def test_an_opened_model_has_the_sum_as_its_token_table(gdes):
  saved = open_model(gdes)
  leaves = trees.by_path(saved.params)
  assert DIFFERENCE not in leaves
  np.testing.assert_array_equal(leaves[TABLE], _whole(gdes))
  np.testing.assert_array_equal(leaves[BASE], saved_params(gdes)[BASE])
  encoder = saved.open_encoder()
  np.testing.assert_array_equal(encoder.params["embeddings"]["token"]["embedding"], _whole(gdes))
  generator = open_generator(saved, encoder)
  assert generator is not None and generator.settings.has_table


def test_an_opened_run_computes_what_the_run_does(gdes, small_records):
  opened = open_run(gdes, rows=4)
  run, own = opened.run, small_run(small_config("gdes", small_records))
  ids = PackedRecords(small_records, length=LENGTH, seed=0).batch(0, 4)
  masked = run.eval_batch_of(ids, np.int32(0), np.float32(1.0))
  totals = run.recipe.totals(masked)
  stored = token_tables.with_token(opened.params, difference=saved_params(gdes)[DIFFERENCE])
  losses = [
    jax.jit(lambda params, recipe=recipe: recipe.loss_fn(params, masked, totals, train=False)[0])(given)
    for recipe, given in ((run.recipe, opened.params), (own.recipe, stored))
  ]
  assert losses[0] == losses[1]


def test_probes_of_a_training_run_get_the_sum(gdes):
  class Probing:
    def measure(self, params, *, is_stopping):
      self.table = params["encoder"]["embeddings"]["token"]["embedding"]

  probing, stored = Probing(), load_params(gdes)[0]
  probes = Probes(probing, 0, 2, mock.Mock(), mock.Mock(), lambda step: False)
  probes.after(2, mock.Mock(params=stored))
  np.testing.assert_array_equal(probing.table, _whole(gdes))


def test_an_average_is_that_of_both_tables(gdes, tmp_path):
  average(gdes, output=tmp_path / "mean", last=2)
  found = open_model(tmp_path / "mean").params["encoder"]["embeddings"]["token"]["embedding"]
  np.testing.assert_allclose(found, (_whole(gdes, 2) + _whole(gdes, 4)) / 2, atol=1e-7)


def _loaded(recipe, records, fields) -> dict[str, np.ndarray]:
  run = small_run(small_config(recipe, records, fields))
  wanted, origins = run.abstract_state.params, warm_start.origins(run.config.to_dict())
  digest = manifest.read(records).vocabulary.digest
  params = warm_start.load_into(wanted, origins, vocabulary_digest=digest)
  leaves = trees.by_path(params)
  assert leaves.keys() == trees.by_path(wanted).keys()
  for path, leaf in trees.by_path(wanted).items():
    assert (leaves[path].shape, leaves[path].sharding) == (leaf.shape, leaf.sharding)
  return {path: np.asarray(leaf) for path, leaf in leaves.items() if isinstance(leaf, jax.Array)}


def test_a_run_continues_with_both_tables(gdes, small_records):
  taken, saved = _loaded("gdes", small_records, {"train.init_from": str(gdes)}), saved_params(gdes)
  np.testing.assert_allclose(taken.pop(DIFFERENCE), saved.pop(DIFFERENCE), atol=1e-7)
  assert taken.keys() == saved.keys()
  for path, value in taken.items():
    np.testing.assert_array_equal(value, saved[path], err_msg=path)


def test_another_generator_keeps_the_table_of_the_encoder(gdes, small_records, finished):
  fields = {"train.init_from": str(gdes), "generator.num_layers": 2}
  taken = _loaded("gdes", small_records, fields)
  np.testing.assert_array_equal(taken[BASE], _whole(gdes))
  assert not np.any(taken[DIFFERENCE])
  taken = _loaded("gdes", small_records, {"train.init_from": str(gdes), "generator.init_from": str(finished)})
  np.testing.assert_array_equal(taken[BASE], saved_params(finished)[TABLE])
  np.testing.assert_allclose(taken[BASE] + taken[DIFFERENCE], _whole(gdes), atol=1e-7)


def test_a_run_that_shares_otherwise_starts_from_the_sum(gdes, small_records):
  for share in ("tokens", "none"):
    fields = {"train.init_from": str(gdes), "generator.share_embeddings": share}
    taken = _loaded("gdes", small_records, fields)
    np.testing.assert_array_equal(taken[TABLE], _whole(gdes))


def test_a_run_with_a_difference_starts_from_ordinary_checkpoints(small_records, finished, gdes):
  table = saved_params(finished)[TABLE]
  taken = _loaded("gdes", small_records, {"train.init_from": str(finished)})
  np.testing.assert_array_equal(taken[BASE], table)
  assert not np.any(taken[DIFFERENCE])
  taken = _loaded("gdes", small_records, {"generator.init_from": str(finished)})
  np.testing.assert_array_equal(taken[BASE], table)
  assert all(path.startswith("generator/") for path in taken)
  taken = _loaded("gdes", small_records, {"generator.init_from": str(gdes)})
  np.testing.assert_array_equal(taken[BASE], saved_params(gdes)[BASE])


def test_such_a_run_trains_on(gdes, small_records, tmp_path):
  fields = {"train.total_steps": 2, "train.eval_batches": 0, "train.init_from": str(gdes)}
  fields |= {"optimizer.learning_rate": 1e-12}
  assert run_training(small_config("gdes", small_records, fields), tmp_path / "next") == 0
  np.testing.assert_allclose(_whole(tmp_path / "next"), _whole(gdes), atol=1e-7)
