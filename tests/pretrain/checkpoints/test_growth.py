"""A larger model that begins with a smaller one's parameters, and rows of new words: every kind of array."""

import jax
import numpy as np
import pytest

from data.errors import DataError
from data.vocabulary import Extension
from pretrain.checkpoints import warm_start
from pretrain.mesh import trees
from tests.pretrain.checkpoints.conftest import LARGER, MODERN, taken
from tests.pretrain.small_run import metric_lines, run_training, saved_params, small_config

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
  for old, new, expected in (
    (3, 5, [0, 1, 1, 2, 2]),
    (22, 28, [*of_28, 20, 21]),
    (2, 4, [0, 0, 1, 1]),
  ):
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
    with pytest.raises(DataError, match=f"here: encoder.* has {rows} rows; expected 5 to 8\n  --config"):
      warm_start.add_rows(_params(rows), EXTENSION, rows=8, where="here")
  assert (
    len(trees.by_path(warm_start.add_rows(_params(5), EXTENSION, rows=8, where=""))["heads/mlm/bias"]) == 8
  )
