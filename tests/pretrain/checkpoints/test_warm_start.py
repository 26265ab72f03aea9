"""What a new run takes from other checkpoints, says and refuses: a model, a generator, a token table."""

import logging
import shutil

import numpy as np
import pytest

from configs import base
from data import files, vocabulary
from data.errors import ConfigError, DataError, StorageError
from data.vocabulary import Extension
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.checkpoints.saved_model import save_params
from tests.pretrain.checkpoints.conftest import MODERN, assert_equal, save_start, taken
from tests.pretrain.small_run import run_training, saved_params, small_config

TABLE = "encoder/embeddings/token/embedding"
PROJECTED = {"objectives.scl.head": "projection"}  # as `union` has it


def test_nothing_is_taken_unless_asked_for(small_records):
  assert taken("coco_lm", small_records, {}) == {}


def test_the_same_recipe_takes_everything(small_records, union):
  said = []
  found = taken("union", small_records, PROJECTED | {"train.init_from": str(union)}, say=said.append)
  assert_equal(found, saved_params(union))
  (line,) = said
  assert f"Starting from {union}, step 1: loaded encoder, heads/" in line
  assert "fresh: optimizer, step; unused: nothing" in line


def test_what_does_not_fit_starts_fresh_and_is_said(small_records, union, finished):
  said = []
  fields = {"train.init_from": str(union), "model.num_layers": 2, "objectives.scl.weight": 0.0}
  found = taken("coco_lm", small_records, fields, say=said.append)
  assert {name.split("/")[0] for name in found} == {"encoder", "heads"}
  assert "fresh: generator (trunk/" in said[0] and "has shape" in said[0]
  assert said[0].endswith("unused: generator, generator/mixture, heads/scl")
  # A checkpoint without a generator gives the encoder.
  found = taken("coco_lm", small_records, {"train.init_from": str(finished)}, say=said.append)
  assert found.keys() == {name for name in saved_params(finished) if name.startswith("encoder/")}
  assert "generator (not in it)" in said[1] and "unused: heads/mlm" in said[1]


def test_a_generator_comes_from_the_encoder_of_a_masked_lm_run(small_records, union, finished):
  saved = saved_params(finished)
  found = taken("coco_lm", small_records, {"generator.init_from": str(finished)})
  assert found and all(name.startswith("generator/") for name in found)
  for name, value in found.items():
    name = name.removeprefix("generator/")
    source = name.replace("mlm_head/", "heads/mlm/") if "mlm_head" in name else "encoder/" + name
    np.testing.assert_array_equal(value, saved[source], err_msg=name)
  # The token table is the encoder's own: nothing but a generator apart takes that.
  assert "generator/embeddings/token/embedding" not in found
  frozen = taken("coco_lm", small_records, {"generator.init_from": str(finished), "generator.frozen": True})
  np.testing.assert_array_equal(frozen["generator/embeddings/token/embedding"], saved[TABLE])
  # It goes over that of `train.init_from`.
  fields = PROJECTED | {"train.init_from": str(union), "model.num_layers": 2, "generator.num_layers": 1}
  fields |= {"generator.init_from": str(finished), "generator.mlm_layers": (), "generator.mixture": "none"}
  found, name = taken("union", small_records, fields), "trunk/layers/up/kernel"
  np.testing.assert_array_equal(found[f"generator/{name}"], saved[f"encoder/{name}"])
  np.testing.assert_array_equal(found[f"encoder/{name}"], saved_params(union)[f"encoder/{name}"])


def test_a_generator_comes_from_a_run_that_has_one_with_its_heads(small_records, coco_lm):
  saved, fields = saved_params(coco_lm), {"generator.init_from": str(coco_lm)}
  found = taken("coco_lm", small_records, fields | {"generator.frozen": True})
  own = [name for name in found if name in saved]
  assert own and all(name.startswith("generator/") for name in found)
  for name, value in found.items():
    source = name if name in saved else name.replace("generator/", "encoder/")
    np.testing.assert_array_equal(value, saved[source], err_msg=name)
  assert taken("coco_lm", small_records, fields | {"model.num_heads": 4, "generator.num_heads": 2})


def test_a_token_table_comes_from_a_checkpoint(small_records, finished):
  fields = {"model.freeze_embeddings": "checkpoint", "model.freeze_embeddings_from": str(finished)}
  assert_equal(taken("mlm", small_records, fields), {TABLE: saved_params(finished)[TABLE]})


def test_a_checkpoint_that_does_not_fit_is_refused(small_records, finished, coco_lm, tmp_path):
  init, generator = {"train.init_from": str(finished)}, {"generator.init_from": str(finished)}
  frozen = {"model.freeze_embeddings": "checkpoint", "model.freeze_embeddings_from": str(finished)}
  for name, value in (("nan", np.nan), ("inf", -np.inf)):
    save_start(tmp_path / name, small_config("mlm", small_records), small_records, at={TABLE: value})
  cases = [
    ("mlm", init | {"model.mlp_size": 64}, "(encoder): trunk/layers/down/kernel has shape (1, 32, 16), "),
    ("mlm", init | {"model.num_layers": 2}, "; and "),
    ("mlm", init | {"train.init_from": "nowhere"}, "train.init_from=nowhere: no checkpoint in "),
    *(("mlm", {"train.init_from": str(tmp_path / name)}, "contains NaN") for name in ("nan", "inf")),
    ("coco_lm", generator | {"model.hidden_size": 32}, "(generator): "),
    ("coco_lm", generator | {"generator.num_layers": 2, "generator.mlm_layers": (1, 2)}, "(generator): "),
    ("coco_lm", generator | {"generator.num_heads": 4}, "(num_heads: 2 there, 4 here)"),
    ("coco_lm", {"generator.init_from": str(coco_lm), "model.num_heads": 4}, "(num_heads: 2 there, 4 here)"),
    ("coco_lm", generator | {"model.layer_norm_eps": 1e-12}, "layer_norm_eps: 1e-05 there, 1e-12 here"),
  ]
  cases += [
    ("coco_lm", one, "not that of the records (cccccccccccc...)") for one in (init, generator, frozen)
  ]
  failures = []
  for recipe, fields, part in cases:
    digest = "c" * 64 if "cccc" in part else ""
    with pytest.raises(DataError) as refused:
      taken(recipe, small_records, fields, digest=digest)
    if part not in str(refused.value):
      failures.append(f"{recipe} {fields}: {refused.value}")
  # Equal arrays that would mean something else, although every shape fits.
  meanings = {"num_heads": 4, "num_segments": 2, "layer_norm_eps": 1e-12, "relative_position": "official"}
  meanings |= {
    "relative_buckets": 16,
    "relative_max_distance": 17,
    "position": "none",
    "norm_placement": "pre",
  }
  meanings |= {"norm": "rmsnorm", "mlp": "gated", "activation": "silu", "embedding_norm": False}
  for name, value in meanings.items():
    with pytest.raises(DataError) as refused:
      taken("mlm", small_records, init | {f"model.{name}": value}, sizes={})
    if f"{name}: " not in str(refused.value):
      failures.append(f"{name}: {refused.value}")
  assert not failures, "\n".join(failures)


def test_a_new_phase_may_change_the_reach_of_attention_and_says_so(small_records, modern, finished, caplog):
  caplog.set_level(logging.INFO)
  fields = MODERN | {"train.init_from": str(modern), "model.relative_buckets": 16, "model.rope_theta": 1e4}
  fields |= {"model.window": 8, "model.global_layers": (1,)}
  assert_equal(taken("mlm", small_records, fields, sizes=MODERN), saved_params(modern))
  changes = [line.partition("this phase changes ")[2] for line in caplog.messages if "changes" in line]
  theta = "model.rope_theta: 160000.0 there, 10000.0 here"
  assert changes == [theta, "model.window: 128 there, 8 here", "model.global_layers: () there, (1,) here"]
  caplog.clear()
  # Learned positions have no base.
  taken("mlm", small_records, {"train.init_from": str(finished), "model.rope_theta": 1e4}, sizes={})
  assert not any("changes" in line for line in caplog.messages)


def test_a_run_begins_with_it_and_cannot_change_it_later(small_records, finished, tmp_path):
  said = []
  fields = {"train.total_steps": 2, "train.eval_batches": 0, "train.init_from": str(finished)}
  fields |= {"optimizer.learning_rate": 1e-12}
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


def test_new_words_start_from_the_rows_of_their_old_pieces(small_records, union, tmp_path):
  def extending(name, digest):
    shutil.copytree(small_records / "vocabulary", tmp_path / name)
    old = vocabulary.load(small_records / "vocabulary")
    extension = Extension(digest or old.digest, old.size, {7: (8, 9), old.size - 1: (5, 6)})
    return vocabulary.write_description(
      tmp_path / name, kind=old.kind, cased=old.cased, extends=extension
    ).digest

  rows = small_config("union", small_records).model.vocab_size + 64
  fields = PROJECTED | {"train.init_from": str(union), "model.vocab_size": rows}
  said, digest = [], extending("v", "")
  found = taken("union", small_records, fields, digest=digest, directory=str(tmp_path / "v"), say=said.append)
  assert f"train.init_from={union}: 2 new words have the mean rows of their old pieces" in said[0]
  saved = saved_params(union)
  wider = {name for name, leaf in found.items() if leaf.shape != saved[name].shape}
  assert wider == {TABLE, "generator/mlm_head/bias", "heads/clm/bias"}
  for name in wider:
    assert len(found[name]) == rows
    np.testing.assert_allclose(found[name][7], saved[name][[8, 9]].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(found[name][:7], saved[name][:7])
  digest = extending("w", "0" * 64)
  with pytest.raises(DataError, match="is not that of the records"):
    taken("union", small_records, fields, digest=digest, directory=str(tmp_path / "w"))


def test_a_frozen_generator_and_token_table_stay_bit_equal_while_the_rest_learns(
  small_records, finished, tmp_path
):
  fields = {"train.total_steps": 2, "train.checkpoint_every": 1, "train.eval_batches": 0}
  fields |= {"generator.init_from": str(finished), "generator.frozen": True, "objectives.scl.weight": 0.0}
  fields |= {"model.freeze_embeddings": "checkpoint", "model.freeze_embeddings_from": str(finished)}
  assert run_training(small_config("coco_lm", small_records, fields), tmp_path) == 0
  end, before = saved_params(tmp_path), saved_params(tmp_path, 1)
  unchanged = {name: end[name] for name in end if np.array_equal(end[name], before[name])}
  assert_equal(taken("coco_lm", small_records, fields), unchanged)
  assert {name for name in end if name.startswith("generator/")} | {TABLE} == unchanged.keys()


def test_what_cannot_begin_is_told_before_text_is_prepared_or_anything_is_written(
  small_records, finished, tmp_path
):
  nowhere, frozen = str(tmp_path / "nowhere"), {"model.freeze_embeddings": "checkpoint"}
  fields = {"data.source": str(tmp_path / "none.txt"), "data.directory": str(tmp_path / "records")}
  for changes, place, error, part in (
    ({"train.init_from": nowhere}, "run", DataError, "train.init_from="),
    ({"generator.init_from": nowhere}, "run", DataError, "generator.init_from="),
    ({"model.freeze_embeddings_from": nowhere} | frozen, "run", DataError, "model.freeze_embeddings_from="),
    ({}, "file/run", StorageError, "file/run"),
  ):
    (tmp_path / "file").touch()
    with pytest.raises(error, match=part):
      run_training(small_config("coco_lm", "", fields | changes), tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"], changes
  fields = {"generator.init_from": str(finished), "generator.num_heads": 4}
  with pytest.raises(DataError, match="num_heads: 2 there, 4 here"):
    run_training(small_config("coco_lm", small_records, fields), tmp_path / "run")
  assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _origins(**fields):
  config = base.get_config()
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
  return warm_start.origins(config.to_dict())


def test_a_warm_start_says_who_made_the_checkpoint(tmp_path):
  source = {"path": "cocolm-base", "family": "official"}
  meta = {"config": {"recipe": "imported"}, "source": source}
  save_params(tmp_path / "first", {"a": np.zeros(1)}, meta, step=3)
  origins = _origins(train__init_from=str(tmp_path / "first"))
  assert origins.facts() == {"train.init_from": {"recipe": "imported", "step": 3, "source": source}}
  # Processes compare what they found: the step, and which files it has.
  (found,) = origins.digests().values()
  assert found == ["3", files.sha256(tmp_path / "first" / "checkpoints" / "3" / "sha256.json")[:12]]
  with pytest.raises(DataError, match=r"^train\.init_from=.*gone: no checkpoint in .*gone"):
    _origins(train__init_from=str(tmp_path / "gone")).facts()


def test_a_checkpoint_that_the_method_does_not_use_is_no_start():
  fields = {"generator__init_from": "a", "model__freeze_embeddings_from": "b"}
  assert _origins(**fields).named == {} and not _origins().grows
  used = fields | {"corruption__kind": "generator", "model__freeze_embeddings": "checkpoint"}
  assert list(_origins(**used).named.values()) == ["a", "b"] and _origins(train__init_grow="tile").grows
