"""Opening a checkpoint: what its meta must say, and which vocabulary is taken for it."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import backbones, base
from data import vocabulary as vocabularies
from data.errors import DataError
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.saved_model import OpenedEncoder, open_model
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import encode, init_encoder


def _save(workdir, meta):
  checkpoints = Checkpoints(workdir, every=1, keep=2)
  for step in (1, 2):
    state = {"params": {"a": np.full(2, step, np.float32)}, "step": np.int32(step)}
    assert checkpoints.save(step, state, meta)
  checkpoints.close()
  return workdir


@pytest.fixture
def saved(small_records, tmp_path):
  """The workdir of a checkpoint without a vocabulary of its own; its config names the records."""
  config = base.get_config()
  config.data.directory = str(small_records)
  digest = vocabularies.load(small_records / "vocabulary").digest
  return _save(tmp_path / "run", {"config": config.to_dict(), "vocabulary_digest": digest})


def test_a_step_is_opened_by_workdir_or_directory(saved):
  newest, first = open_model(saved), open_model(saved, 1)
  np.testing.assert_array_equal(newest.params["a"], [2, 2])
  np.testing.assert_array_equal(first.params["a"], [1, 1])
  again = open_model(first.path)
  assert again.path == first.path and again.meta == first.meta and again.workdir == saved


@pytest.mark.parametrize("name", ["config", "vocabulary_digest", "config.model"])
def test_meta_that_lacks_a_part_is_refused(name, tmp_path):
  meta = {"config": {"model": {}}, "vocabulary_digest": "d"}
  if name == "config.model":
    meta["config"] = {"data": {}}
  else:
    del meta[name]
  with pytest.raises(DataError, match=f"its meta lacks {name}, so"):
    open_model(_save(tmp_path, meta))


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


def test_another_vocabulary_or_none_is_refused_with_the_flag_that_mends_it(small_records, tmp_path):
  other = _save(tmp_path / "other", {"config": base.get_config().to_dict(), "vocabulary_digest": "d"})
  with pytest.raises(DataError, match=r"is not the vocabulary of checkpoint .*\n  --v=DIR"):
    open_model(other).load_vocabulary(str(small_records / "vocabulary"), flag="--v")
  with pytest.raises(DataError, match=r"no vocabulary in .* or .*\n  --v=DIR"):
    open_model(other).load_vocabulary("", flag="--v")
  bare = _save(tmp_path / "bare", {"config": {"model": {}}, "vocabulary_digest": "d"})
  with pytest.raises(DataError, match=r"(?s)no vocabulary in .*--v=DIR"):
    open_model(bare).load_vocabulary("", flag="--v")


def test_where_no_flag_names_a_vocabulary_the_error_says_where_to_put_it(small_records, tmp_path):
  bare = _save(tmp_path / "bare", {"config": {"model": {}}, "vocabulary_digest": "d"})
  with pytest.raises(DataError, match=r"no vocabulary in .*; copy its files to .*/bare/vocabulary$"):
    open_model(bare).load_vocabulary()
  shutil.copytree(small_records / "vocabulary", bare / "vocabulary")
  with pytest.raises(DataError, match=r"is not the vocabulary of .*copy its files to .*/bare/vocabulary$"):
    open_model(bare).load_vocabulary()


@pytest.mark.parametrize("fields", [{}, backbones.BACKBONES["modern_tiny"]], ids=["post-LN", "modern"])
def test_the_first_layers_compute_what_they_did_below_the_others(small_records, fields):
  sizes = {"vocab_size": 32, "hidden_size": 16, "num_layers": 3, "num_heads": 2, "mlp_size": 24}
  known = {name: fields[name] for name in EncoderConfig.__dataclass_fields__ if name in fields}
  config = EncoderConfig(**known | sizes | {"max_length": 16, "window": min(fields.get("window", 0), 4)})
  vocabulary = vocabularies.load(small_records / "vocabulary")
  pad_id = vocabulary.special_ids.pad
  whole = OpenedEncoder(
    jax.device_get(init_encoder(jax.random.key(0), config, pad_id=pad_id)), config, vocabulary, pathlib.Path()
  )
  first = whole.first_layers(2)
  assert first.config.num_layers == 2
  ids = jax.random.randint(jax.random.key(1), (2, 16), 5, 32)
  hidden = {}
  for name, encoder in {"whole": whole, "first": first}.items():
    _, hidden[name] = encode(
      encoder.params, encoder.config, ids, jnp.ones_like(ids, bool), pad_id=pad_id, collect="all"
    )
  np.testing.assert_array_equal(hidden["first"].layers, hidden["whole"].layers[:2])
  if not fields:
    np.testing.assert_array_equal(hidden["first"].last, hidden["whole"].layers[1])
