"""A larger model that begins with a smaller one's parameters: every kind of array, runs, and refusals."""

import jax
import numpy as np
import pytest

from data.errors import DataError
from pretrain.checkpoints import growth
from pretrain.mesh import trees
from tests.pretrain.checkpoints.test_init_from import _save, _taken
from tests.pretrain.small_run import metric_lines, run_training, saved_params, small_config, small_run

# Twice the width of `small_run`, with heads of its width.
LARGER = {"model.num_layers": 3, "model.hidden_size": 32, "model.num_heads": 4, "model.mlp_size": 48}
MODERN = {
  "model.relative_position": "none",
  "model.position": "rope",
  "model.norm_placement": "pre",
  "model.embedding_norm": False,
  "model.norm_bias": False,
  "model.attention_bias": False,
  "model.mlp": "gated",
  "model.mlp_bias": False,
}


def _grown(path: str, old, *shape: int) -> list:
  """One array of a tree, grown; as nested lists."""
  names = path.split("/")
  params, shapes = np.asarray(old, np.float32), jax.ShapeDtypeStruct(shape, np.float32)
  for name in reversed(names):
    params, shapes = {name: params}, {name: shapes}
  (leaf,) = jax.tree.leaves(growth.grow(params, shapes))
  assert leaf.shape == shape and leaf.dtype == np.float32
  return leaf.tolist()


def test_an_axis_is_repeated_around_its_middle():
  assert _grown("norm/scale", [1, 2, 3], 8) == [2, 3, 1, 2, 3, 1, 2, 3]
  assert _grown("norm/scale", [1, 2, 3, 4, 5], 8) == [5, 1, 2, 3, 4, 5, 1, 2]
  assert _grown("norm/scale", [1, 2], 2) == [1, 2]
  assert _grown("mlm/dense/kernel", [[1, 2], [3, 4]], 3, 4) == [[2, 1, 2, 1], [4, 3, 4, 3], [2, 1, 2, 1]]


@pytest.mark.parametrize(
  ("old", "new", "expected"),
  [
    (3, 5, [0, 1, 1, 2, 2]),
    (
      22,
      28,
      [
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
        20,
        21,
      ],
    ),
    (2, 4, [0, 0, 1, 1]),
  ],
)
def test_layers_are_repeated_evenly(old, new, expected):
  layers = [[number, number + 0.5] for number in range(old)]
  assert _grown("trunk/layers/mlp_norm/scale", layers, new, 2) == [[x, x + 0.5] for x in expected]
  assert _grown("inner_norms/scale", [[1.0], [2.0]], 4, 1) == [[1.0], [1.0], [2.0], [2.0]]


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_heads_are_copied_whole(name):
  # Heads (1, 2) and (3, 4) of width 2; four heads begin with the second: an offset of one whole head.
  kernel = [[[[1, 2], [3, 4]]]]
  assert _grown(f"trunk/layers/attention/{name}/kernel", kernel, 1, 1, 4, 2) == [
    [[[3, 4], [1, 2], [3, 4], [1, 2]]]
  ]
  assert _grown(f"layers/attention/{name}/bias", kernel[0], 1, 4, 2) == [[[3, 4], [1, 2], [3, 4], [1, 2]]]
  output = [[[[1], [2]], [[3], [4]]]]
  assert _grown("trunk/layers/attention/output/kernel", output, 1, 4, 2, 1) == [
    [[[3], [4]], [[1], [2]], [[3], [4]], [[1], [2]]]
  ]
  table = [[1, 2], [3, 4]]  # [buckets, heads]
  assert _grown("trunk/relative_position/embedding", table, 2, 4) == [[2, 1, 2, 1], [4, 3, 4, 3]]


def test_the_width_of_a_table_grows_and_both_halves_of_a_gated_mlp_grow_apart():
  assert _grown("embeddings/token/embedding", [[1, 2], [3, 4]], 2, 3) == [[1, 2, 1], [3, 4, 3]]
  for half in ("gate", "up"):
    assert _grown(f"layers/{half}/kernel", [[[1, 2]]], 1, 1, 4) == [[[2, 1, 2, 1]]]
  assert _grown("layers/down/kernel", [[[1], [2]]], 2, 4, 1) == [[[2], [1], [2], [1]]] * 2


@pytest.mark.parametrize(
  ("path", "old", "new", "message"),
  [
    ("layers/attention/query/kernel", (1, 4, 2, 2), (1, 8, 2, 4), r"2 wide there, 4.*\n  \S*num_heads=4$"),
    ("layers/attention/output/kernel", (1, 2, 2, 4), (1, 2, 4, 8), "2 wide there, 4 here; expected"),
    (
      "layers/attention/key/bias",
      (1, 2, 4),
      (1, 5, 4),
      r"2 heads there, 5 here.*\n  --config\.model\.num_heads=6 --config\.model\.hidden_size=24$",
    ),
    ("embeddings/token/embedding", (7, 2), (9, 4), r"7 rows there.*\n  --config\.model\.vocab_size=7$"),
    ("embeddings/position/embedding", (7, 2), (9, 2), r"expected the same\n  --config\.model\.max_length=7$"),
    ("relative_position/embedding", (7, 2), (9, 4), "7 rows there, 9 here; expected the same$"),
    ("mlm/bias", (7,), (9,), "7 rows there, 9 here"),
    ("layers/up/kernel", (2, 4, 8), (1, 4, 8), r"\(2, 4, 8\), expected \(1, 4, 8\); a model can only"),
    ("norm/scale", (4,), (3,), "can only grow"),
  ],
)
def test_what_cannot_grow_is_refused(path, old, new, message):
  with pytest.raises(DataError, match=message):
    _grown(path, np.zeros(old), *new)


@pytest.fixture(scope="module")
def smaller(small_records, tmp_path_factory):
  """Workdirs of first states of the small post-LN recipe with a generator, and of a pre-norm one."""
  workdirs = {}
  for name, recipe, fields in (("post", "coco_lm", {}), ("modern", "mlm", MODERN)):
    workdirs[name] = tmp_path_factory.mktemp(name)
    config = small_config(recipe, small_records, {"seed": 3, **fields})
    _save(workdirs[name], config, small_run(config).init_state()._asdict(), small_records)
  return workdirs


def test_growing_to_the_same_size_changes_nothing(small_records, smaller):
  saved = saved_params(smaller["post"])
  fields = {"train.init_from": str(smaller["post"]), "train.init_grow": "tile"}
  taken = _taken("coco_lm", small_records, fields)
  assert taken.keys() == saved.keys()
  for name, value in taken.items():
    np.testing.assert_array_equal(value, saved[name], err_msg=name)


def test_encoder_heads_and_generator_grow_together(small_records, smaller):
  said = []
  fields = LARGER | {"train.init_from": str(smaller["post"]), "train.init_grow": "tile"}
  fields |= {"generator.num_layers": 2}
  taken, saved = _taken("coco_lm", small_records, fields, say=said.append), saved_params(smaller["post"])
  assert taken.keys() == saved.keys()
  assert said[0].endswith("has 1 layers x 16, MLP 32; grown to 3 layers x 32, MLP 48")
  assert "loaded encoder, " in said[1] and "generator" in said[1] and "fresh: optimizer, step" in said[1]
  middle = (np.arange(32) - 8) % 16
  table = "encoder/embeddings/token/embedding"
  np.testing.assert_array_equal(taken[table], saved[table][:, middle])
  for part, layers in (("encoder", 3), ("generator", 2)):
    kernel = f"{part}/trunk/layers/attention/query/kernel"
    assert taken[kernel].shape == (layers, 32, 4, 8)
    for layer in range(layers):
      flat = saved[kernel][0].reshape(16, 16)
      np.testing.assert_array_equal(taken[kernel][layer].reshape(32, 32), flat[middle][:, middle])


def test_a_part_that_cannot_grow_starts_fresh_and_is_said(small_records, smaller):
  said = []
  fields = LARGER | {"train.init_from": str(smaller["post"]), "train.init_grow": "tile"}
  fields |= {"generator.num_heads": 1}
  taken = _taken("coco_lm", small_records, fields, say=said.append)
  assert not any(name.startswith("generator") for name in taken)
  assert "fresh: generator (trunk/layers/attention/" in said[1] and "8 wide there, 32 here" in said[1]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"model.num_heads": 2}, r"\(encoder\): .*8 wide there, 16 here; expected one width\n  .*num_heads=4$"),
    ({"model.max_length": 64}, r"position/embedding has 32 rows there, 64 here"),
    ({"model.activation": "silu"}, "another kind of model .activation: gelu there, silu here"),
    ({"train.init_grow": ""}, r"num_heads: 2 there, 4 here"),
  ],
)
def test_another_encoder_is_refused_when_it_is_to_grow(small_records, smaller, fields, message):
  fields = LARGER | {"train.init_from": str(smaller["post"]), "train.init_grow": "tile"} | fields
  with pytest.raises(DataError, match=message):
    _taken("coco_lm", small_records, fields)


def test_a_run_trains_from_a_grown_pre_norm_encoder(small_records, smaller, tmp_path):
  fields = MODERN | LARGER | {"train.init_from": str(smaller["modern"]), "train.init_grow": "tile"}
  fields |= {"train.total_steps": 2, "train.eval_batches": 0, "train.log_every": 1}
  assert run_training(small_config("mlm", small_records, fields), tmp_path) == 0
  assert all(np.isfinite(line["train/loss"]) for line in metric_lines(tmp_path) if "train/loss" in line)
  taken, saved = _taken("mlm", small_records, fields), saved_params(smaller["modern"])
  gate = "encoder/trunk/layers/gate/kernel"
  tiled = saved[gate][0][(np.arange(32) - 8) % 16][:, (np.arange(48) - 8) % 32]
  np.testing.assert_array_equal(taken[gate], [tiled] * 3)
  assert trees.by_path(taken).keys() == saved.keys()
