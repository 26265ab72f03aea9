"""A new run loads a model (equal or grown), a generator or a token table, and rows for new words."""

import logging
import shutil

import jax
import numpy as np
import pytest

from configs import base
from data import files, vocabulary
from data.errors import ConfigError, DataError, StorageError
from data.vocabulary import Extension
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.checkpoints.saved_model import save_params
from pretrain.mesh import trees
from tests.pretrain.checkpoints.conftest import LARGER, MODERN, assert_equal, save_start, taken
from tests.pretrain.small_run import metric_lines, run_training, saved_params, small_config

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


_MIDDLE = (np.arange(32) - 8) % 16  # 16 numbers around the middle of 32


def _grown(path: str, old, *shape: int, is_pre: bool = False) -> list:
  """One array of a tree, grown; as nested lists."""
  names = path.split("/")
  params, shapes = np.asarray(old, np.float32), jax.ShapeDtypeStruct(shape, np.float32)
  for name in reversed(names):
    params, shapes = {name: params}, {name: shapes}
  (leaf,) = jax.tree.leaves(warm_start.grow_params(params, shapes, is_pre=is_pre))
  assert leaf.shape == shape and leaf.dtype == np.float32
  return leaf.tolist()


def test_an_axis_is_repeated_around_its_middle():
  assert _grown("norm/scale", [1, 2, 3], 8) == [2, 3, 1, 2, 3, 1, 2, 3]
  assert _grown("norm/scale", [1, 2, 3, 4, 5], 8) == [5, 1, 2, 3, 4, 5, 1, 2]
  assert _grown("norm/scale", [1, 2], 2) == [1, 2]
  assert _grown("mlm/dense/kernel", [[1, 2], [3, 4]], 3, 4) == [[2, 1, 2, 1], [4, 3, 4, 3], [2, 1, 2, 1]]
  assert _grown("embeddings/token/embedding", [[1, 2], [3, 4]], 2, 3) == [[1, 2, 1], [3, 4, 3]]


def test_layers_are_repeated_evenly_and_of_a_pre_norm_encoder_read_the_norms_they_read():
  of_28 = [
    0,
    1,
    2,
    2,
    *range(3, 7),
    6,
    *range(7, 10),
    9,
    *range(10, 14),
    13,
    *range(14, 17),
    16,
    *range(17, 21),
  ]
  for old, new, expected in ((3, 5, [0, 1, 1, 2, 2]), (22, 28, [*of_28, 20, 21]), (2, 4, [0, 0, 1, 1])):
    layers = [[number, number + 0.5] for number in range(old)]
    assert _grown("trunk/layers/mlp_norm/scale", layers, new, 2) == [[x, x + 0.5] for x in expected]
    assert _grown("trunk/layers/up/bias", layers, new, 2, is_pre=True) == [[x, x + 0.5] for x in expected]
  # The norm behind layer i is read by layer i + 1, of layers 0, 1, 1, 2, 2; the last one is the final norm.
  layers = [[0.0], [1.0], [2.0]]
  assert _grown("layers/mlp_norm/scale", layers, 5, 1, is_pre=True) == [[0.0], [0.0], [1.0], [1.0], [2.0]]
  assert _grown("inner_norms/scale", [[1.0], [2.0]], 4, 1) == [[1.0], [1.0], [2.0], [2.0]]


def test_heads_are_copied_whole_and_both_halves_of_a_gated_mlp_grow_apart():
  # Heads (1, 2) and (3, 4) of width 2; four heads begin with the second: an offset of one whole head.
  kernel = [[[[1, 2], [3, 4]]]]
  heads = [[3, 4], [1, 2], [3, 4], [1, 2]]
  for name in ("query", "key", "value"):
    assert _grown(f"trunk/layers/attention/{name}/kernel", kernel, 1, 1, 4, 2) == [[heads]]
    assert _grown(f"layers/attention/{name}/bias", kernel[0], 1, 4, 2) == [heads]
  output = [[[[1], [2]], [[3], [4]]]]
  assert _grown("trunk/layers/attention/output/kernel", output, 1, 4, 2, 1) == [
    [[[3], [4]], [[1], [2]], [[3], [4]], [[1], [2]]]
  ]
  table = [[1, 2], [3, 4]]  # [buckets, heads]
  assert _grown("trunk/relative_position/embedding", table, 2, 4) == [[2, 1, 2, 1], [4, 3, 4, 3]]
  for half in ("gate", "up"):
    assert _grown(f"layers/{half}/kernel", [[[1, 2]]], 1, 1, 4) == [[[2, 1, 2, 1]]]
  assert _grown("layers/down/kernel", [[[1], [2]]], 2, 4, 1) == [[[2], [1], [2], [1]]] * 2


# (path, old shape, new shape, part of the message: the flag to paste, or the sizes)
REFUSED = [
  ("layers/attention/query/kernel", (1, 4, 2, 2), (1, 8, 2, 4), "\n  --config.model.num_heads=4"),
  ("layers/attention/output/kernel", (1, 2, 2, 4), (1, 2, 4, 8), "\n  --config.model.num_heads=4"),
  ("layers/attention/output/kernel", (1, 2, 3, 4), (1, 2, 4, 8), "3 wide there, 4 here; expected one width"),
  (
    "layers/attention/key/bias",
    (1, 2, 4),
    (1, 5, 4),
    "\n  --config.model.num_heads=6 --config.model.hidden_size=24",
  ),
  ("embeddings/token/embedding", (7, 2), (9, 4), "\n  --config.model.vocab_size=7"),
  ("embeddings/position/embedding", (7, 2), (9, 2), "\n  --config.model.max_length=7"),
  ("relative_position/embedding", (7, 2), (9, 4), "7 rows there, 9 here; expected the same"),
  ("mlm/bias", (7,), (9,), "7 rows there, 9 here"),
  ("layers/up/kernel", (2, 4, 8), (1, 4, 8), "(2, 4, 8), expected (1, 4, 8)"),
  ("norm/scale", (4,), (3,), "can only grow"),
]


def test_what_cannot_grow_is_refused():
  failures = []
  for path, old, new, part in REFUSED:
    with pytest.raises(DataError) as refused:
      _grown(path, np.zeros(old), *new)
    message = str(refused.value)
    if part not in message or not message.startswith(path) or ("--config" in message) != ("--config" in part):
      failures.append(f"{path}: {message}")
  assert not failures, "\n".join(failures)


def test_encoder_heads_and_generator_grow_together(small_records, coco_lm):
  said = []
  fields = LARGER | {"train.init_from": str(coco_lm), "train.init_grow": "tile", "generator.num_layers": 2}
  found, saved = taken("coco_lm", small_records, fields, say=said.append), saved_params(coco_lm)
  assert found.keys() == saved.keys()
  assert said[0].endswith("has 1 layers x 16, MLP 32; grown to 3 layers x 32, MLP 48")
  assert "loaded encoder, " in said[1] and "generator" in said[1] and "fresh: optimizer, step" in said[1]
  table = "encoder/embeddings/token/embedding"
  np.testing.assert_array_equal(found[table], saved[table][:, _MIDDLE])
  for part, layers in (("encoder", 3), ("generator", 2)):
    kernel = f"{part}/trunk/layers/attention/query/kernel"
    assert found[kernel].shape == (layers, 32, 4, 8)
    for layer in range(layers):
      flat = saved[kernel][0].reshape(16, 16)
      np.testing.assert_array_equal(found[kernel][layer].reshape(32, 32), flat[_MIDDLE][:, _MIDDLE])
  # What cannot grow starts fresh.
  found = taken("coco_lm", small_records, fields | {"generator.num_heads": 1}, say=said.append)
  assert not any(name.startswith("generator") for name in found)
  assert "fresh: generator (trunk/layers/attention/" in said[3] and "8 wide there, 32 here" in said[3]


def test_another_encoder_is_refused_when_it_is_to_grow(small_records, coco_lm):
  growing = LARGER | {"train.init_from": str(coco_lm), "train.init_grow": "tile"}
  for fields, part in (
    ({"model.num_heads": 2}, "\n  --config.model.num_heads=4"),
    ({"model.max_length": 64}, "\n  --config.model.max_length=32"),
    ({"model.activation": "silu"}, "activation: gelu there, silu here"),
    ({"train.init_grow": ""}, "num_heads: 2 there, 4 here"),
  ):
    with pytest.raises(DataError, match="train") as refused:
      taken("coco_lm", small_records, growing | fields)
    assert part in str(refused.value)


def test_a_run_trains_from_a_grown_pre_norm_encoder(small_records, modern, tmp_path):
  fields = MODERN | LARGER | {"train.init_from": str(modern), "train.init_grow": "tile"}
  fields |= {"train.total_steps": 2, "train.eval_batches": 0, "train.log_every": 1}
  assert run_training(small_config("mlm", small_records, fields), tmp_path) == 0
  assert all(np.isfinite(line["train/loss"]) for line in metric_lines(tmp_path) if "train/loss" in line)
  found, saved = taken("mlm", small_records, fields), saved_params(modern)
  assert found.keys() == saved.keys()
  gate = saved["encoder/trunk/layers/gate/kernel"]
  tiled = [gate[layer][_MIDDLE][:, (np.arange(48) - 8) % 32] for layer in (0, 1, 1)]
  np.testing.assert_array_equal(found["encoder/trunk/layers/gate/kernel"], tiled)
  # Each copied layer reads the norm that it read: layers 0, 1, 1 those behind the embeddings, 0 and 0.
  norms = "encoder/trunk/layers/mlp_norm/scale"
  np.testing.assert_array_equal(found[norms], [saved[norms][layer][_MIDDLE] for layer in (0, 0, 1)])


EXTENSION = Extension("", 5, {3: (0, 1), 6: (2, 4, 4)})  # a spare slot, and a row at the end
OF_TOKENS = {
  "encoder/embeddings/token/embedding",
  "generator/mlm_head/bias",
  "heads/mlm/bias",
  "heads/clm/bias",
}


def _params(rows=6):
  draw = np.random.default_rng(0).standard_normal
  tables = {"token": {"embedding": draw((rows, 4))}, "norm": {"bias": draw(rows)}}
  heads = {"mlm": {"bias": draw(rows)}, "clm": {"bias": draw(rows)}, "rtd": {"bias": draw(1)}}
  generator = {"mlm_head": {"bias": draw(rows), "dense": {"bias": draw(rows)}}}
  tree = {"encoder": {"embeddings": tables}, "generator": generator, "heads": heads}
  return {name: _as_float32(part) for name, part in tree.items()}


def _as_float32(tree):
  if isinstance(tree, dict):
    return {name: _as_float32(part) for name, part in tree.items()}
  return tree.astype(np.float32)


def test_a_new_row_is_the_mean_of_its_old_pieces_and_all_else_is_unchanged():
  given = _params()
  old, new = trees.by_path(given), trees.by_path(warm_start.add_rows(given, EXTENSION, rows=8, where="here"))
  assert {path for path in old if new[path] is not old[path]} == OF_TOKENS
  for path in OF_TOKENS:
    before, after = old[path], new[path]
    assert after.shape == (8, *before.shape[1:]) and after.dtype == np.float32
    np.testing.assert_array_equal(after[[0, 1, 2, 4, 5]], before[[0, 1, 2, 4, 5]])
    np.testing.assert_allclose(after[3], (before[0] + before[1]) / 2, rtol=1e-6)
    np.testing.assert_allclose(after[6], (before[2] + 2 * before[4]) / 3, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(after[7], before.mean(0), rtol=1e-6, atol=1e-7)  # no id has it
    np.testing.assert_array_equal(before, trees.by_path(_params())[path])
  for rows in (9, 4):  # asked: 8, and the vocabulary had 5
    with pytest.raises(DataError, match=f"here: encoder.* has {rows} rows .*\n  --config"):
      warm_start.add_rows(_params(rows), EXTENSION, rows=8, where="here")
  assert (
    len(trees.by_path(warm_start.add_rows(_params(5), EXTENSION, rows=8, where=""))["heads/mlm/bias"]) == 8
  )
