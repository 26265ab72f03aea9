"""Opening a checkpoint: what its meta must say, which vocabulary is taken, and whole tables of GDES."""

import pathlib
import shutil
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import backbones, base
from data import vocabulary as vocabularies
from data.errors import DataError
from data.records import PackedRecords
from pretrain.checkpoints import __main__ as checkpoints
from pretrain.checkpoints.checkpoint import load_params
from pretrain.checkpoints.saved_model import OpenedEncoder, open_generator, open_model, open_run, save_params
from pretrain.corruption import generator
from pretrain.logs.intervals import Probes
from pretrain.mesh import trees
from pretrain.models.encoder import encode, init_encoder
from pretrain.models.layers import EncoderConfig
from tests.pretrain.checkpoints.conftest import assert_equal, taken
from tests.pretrain.small_run import LENGTH, run_training, saved_params, small_config, small_run


def _save(workdir, meta):
  save_params(workdir, {"a": np.full(2, 7, np.float32)}, meta, step=3)
  return workdir


@pytest.fixture
def saved(small_records, tmp_path):
  """The workdir of a checkpoint without a vocabulary of its own; its config names the records."""
  config = base.get_config()
  config.data.directory = str(small_records)
  digest = vocabularies.load(small_records / "vocabulary").digest
  return _save(tmp_path / "run", {"config": config.to_dict(), "vocabulary_digest": digest})


def test_a_step_is_opened_by_workdir_or_directory_with_a_whole_meta_only(saved, finished, tmp_path):
  model = open_model(saved)
  np.testing.assert_array_equal(model.params["a"], [7, 7])
  again = open_model(model.path)
  assert again.path == model.path and again.meta == model.meta and again.workdir == saved and not again.task
  assert [open_model(finished, step).meta["step"] for step in (None, 4)] == [6, 4]
  for name in ("config", "vocabulary_digest", "config.model"):
    meta = {"config": {"model": {}}, "vocabulary_digest": "d"}
    meta.pop(name, None)
    meta |= {"config": {"data": {}}} if name == "config.model" else {}
    with pytest.raises(DataError, match=f"its meta lacks {name}, so"):
      open_model(_save(tmp_path / name, meta))


def test_the_vocabulary_is_the_named_one_else_beside_the_checkpoint_else_beside_the_records(
  small_records, saved, tmp_path
):
  of_records, own = small_records / "vocabulary", saved / "vocabulary"
  assert open_model(saved).load_vocabulary("", flag="--v")[0] == of_records
  shutil.copytree(of_records, own)
  directory, vocabulary = open_model(saved).load_vocabulary("", flag="--v")
  assert directory == own and vocabulary.digest == open_model(saved).meta["vocabulary_digest"]
  shutil.copytree(of_records, tmp_path / "named")
  assert open_model(saved).load_vocabulary(str(tmp_path / "named"), flag="--v")[0] == tmp_path / "named"
  # Another one, or none: the flag that mends it, or the place where it belongs.
  bare = open_model(_save(tmp_path / "bare", {"config": {"model": {}}, "vocabulary_digest": "d"}))
  for name, flag, part in (
    (str(of_records), "--v", "\n  --v=DIR"),
    ("", "--v", "\n  --v=DIR"),
    ("", "", "/bare/vocabulary"),
  ):
    with pytest.raises(DataError, match="vocabulary") as refused:
      bare.load_vocabulary(name, flag=flag)
    assert str(refused.value).endswith(part)


def test_an_encoder_is_opened_with_the_parameters_and_a_vocabulary_of_its_config(finished, saved):
  opened = open_model(finished).open_encoder()
  assert (opened.config.num_layers, opened.config.hidden_size, opened.config.vocab_size) == (1, 16, 300)
  with pytest.raises(DataError, match="encoder: "):
    open_model(saved).open_encoder()
  model = open_model(finished)
  model.meta["config"]["model"]["vocab_size"] = 299
  with pytest.raises(DataError, match="299 rows"):
    model.open_encoder()


def test_hidden_states_of_texts_are_those_of_each_alone_without_padding(finished):
  opened = open_model(finished).open_encoder()
  vocabulary, most = opened.vocabulary, opened.config.max_length
  texts = ["Bada kipo.", "Ro.", "gemu " * 90]
  hidden = opened.hidden_states(texts, batch_size=2)
  assert len(hidden[2]) == most
  for text, found in zip(texts, hidden, strict=True):
    ids = jnp.asarray([vocabulary.with_special_ids(vocabulary.encode(text), max_length=most)])
    is_token = jnp.ones_like(ids, bool)
    alone = encode(opened.params, opened.config, ids, is_token, pad_id=vocabulary.special_ids.pad)[1].last[0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_the_first_layers_compute_what_they_did_below_the_others(small_records):
  vocabulary = vocabularies.load(small_records / "vocabulary")
  pad_id, fields = vocabulary.special_ids.pad, backbones.BACKBONES["modern_tiny"]
  sizes = {"vocab_size": 32, "hidden_size": 16, "num_layers": 3, "num_heads": 2, "mlp_size": 24}
  known = {name: fields[name] for name in EncoderConfig.__dataclass_fields__ if name in fields}
  config = EncoderConfig(**known | sizes | {"max_length": 16, "window": 4})
  params = jax.device_get(init_encoder(jax.random.key(0), config, pad_id=pad_id))
  whole = OpenedEncoder(params, config, vocabulary, pathlib.Path())
  first = whole.first_layers(2)
  assert first.config.num_layers == 2
  ids = jax.random.randint(jax.random.key(1), (2, 16), 5, 32)
  hidden = [
    encode(one.params, one.config, ids, jnp.ones_like(ids, bool), pad_id=pad_id, collect="all")[1].layers
    for one in (whole, first)
  ]
  np.testing.assert_array_equal(hidden[1], hidden[0][:2])


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
