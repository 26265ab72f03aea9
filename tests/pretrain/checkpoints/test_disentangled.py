"""Checkpoints of a run whose encoder stores a difference of token tables (GDES): readers get the sum."""

import types
from unittest import mock

import jax
import numpy as np
import pytest

from data.records import PackedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints.checkpoint import load_params
from pretrain.checkpoints.saved_model import open_generator, open_model, open_run
from pretrain.corruption import generator
from pretrain.logs.intervals import Probes
from pretrain.mesh import trees
from tests.pretrain.checkpoints.conftest import assert_equal, taken
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


def test_an_opened_model_an_average_and_probes_have_the_sum_as_token_table(gdes, tmp_path):
  saved = open_model(gdes)
  leaves = trees.by_path(saved.params)
  assert DIFFERENCE not in leaves
  np.testing.assert_array_equal(leaves[TABLE], _whole(gdes))
  np.testing.assert_array_equal(leaves[BASE], saved_params(gdes)[BASE])
  encoder = saved.open_encoder()
  np.testing.assert_array_equal(encoder.params["embeddings"]["token"]["embedding"], _whole(gdes))
  generator = open_generator(saved, encoder)
  assert generator is not None and generator.settings.has_table
  assert checkpoints.main(["average", str(gdes), "--last=2", f"--output={tmp_path / 'mean'}"]) == 0
  found = trees.by_path(open_model(tmp_path / "mean").params)[TABLE]
  np.testing.assert_allclose(found, (_whole(gdes, 2) + _whole(gdes, 4)) / 2, atol=1e-7)
  tables, state = [], types.SimpleNamespace(params=load_params(gdes)[0])
  probing = mock.Mock(measure=lambda params, *, is_stopping: tables.append(trees.by_path(params)[TABLE]))
  Probes(probing, 0, 2, mock.Mock(), mock.Mock(), lambda step: False).after(2, state)
  np.testing.assert_array_equal(tables[0], _whole(gdes))


def test_an_opened_run_computes_what_the_run_does(gdes, small_records):
  opened = open_run(gdes, rows=4)
  run, own = opened.run, small_run(small_config("gdes", small_records))
  assert opened.step == 4 and opened.records == str(small_records)
  ids = PackedRecords(small_records, length=LENGTH, seed=0).batch(0, 4)
  masked = run.eval_batch_of(ids, np.int32(0), np.float32(1.0))
  totals = run.recipe.totals(masked)
  stored = generator.with_token(opened.params, difference=saved_params(gdes)[DIFFERENCE])
  losses = [
    jax.jit(lambda params, recipe=recipe: recipe.loss_fn(params, masked, totals, train=False)[0])(given)
    for recipe, given in ((run.recipe, opened.params), (own.recipe, stored))
  ]
  assert losses[0] == losses[1]


def test_runs_begin_with_both_tables_or_with_their_sum(gdes, small_records, finished):
  def loaded(recipe="gdes", **fields):
    return taken(recipe, small_records, {name.replace("__", "."): value for name, value in fields.items()})

  found, saved, table = loaded(train__init_from=str(gdes)), saved_params(gdes), saved_params(finished)[TABLE]
  np.testing.assert_allclose(found.pop(DIFFERENCE), saved[DIFFERENCE], atol=1e-7)
  assert_equal(found, {path: value for path, value in saved.items() if path != DIFFERENCE})
  # Another generator keeps the table of the encoder.
  found = loaded(train__init_from=str(gdes), generator__num_layers=2)
  np.testing.assert_array_equal(found[BASE], _whole(gdes))
  assert not np.any(found[DIFFERENCE])
  found = loaded(train__init_from=str(gdes), generator__init_from=str(finished))
  np.testing.assert_array_equal(found[BASE], table)
  np.testing.assert_allclose(found[BASE] + found[DIFFERENCE], _whole(gdes), atol=1e-7)
  for share in ("tokens", "none"):
    found = loaded(train__init_from=str(gdes), generator__share_embeddings=share)
    np.testing.assert_array_equal(found[TABLE], _whole(gdes))
  # From ordinary checkpoints.
  found = loaded(train__init_from=str(finished))
  np.testing.assert_array_equal(found[BASE], table)
  assert not np.any(found[DIFFERENCE])
  for source, expected in ((finished, table), (gdes, saved[BASE])):
    found = loaded(generator__init_from=str(source))
    np.testing.assert_array_equal(found[BASE], expected)
    assert all(path.startswith("generator/") for path in found)
