"""First states of small models, saved (who changes one takes a copy), and what a run takes from them."""

import functools

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from data import manifest
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.saved_model import save_params
from pretrain.mesh import trees
from tests import lines
from tests.pretrain.small_run import small_config, small_run

# Twice the width of `small_run`, with heads of its width.
LARGER = {"model.num_layers": 3, "model.hidden_size": 32, "model.num_heads": 4, "model.mlp_size": 48}
# A pre-norm encoder of two layers.
MODERN = {
  "model.num_layers": 2,
  "model.relative_position": "none",
  "model.position": "rope",
  "model.norm_placement": "pre",
  "model.embedding_norm": False,
  "model.norm_bias": False,
  "model.attention_bias": False,
  "model.mlp": "gated",
  "model.mlp_bias": False,
}


def digest_of(records) -> str:
  """That of the vocabulary of records."""
  return manifest.read(records).vocabulary.digest


def save_start(workdir, config: ConfigDict, records, *, seed: int = 0, at: dict | None = None) -> None:
  """Saves drawn parameters of a config's model as step 1: no norm is 1, no bias 0; `at` has others."""
  draw = np.random.default_rng(seed).standard_normal
  shapes = small_run(config).abstract_state.params
  params = jax.tree.map(lambda leaf: np.asarray(draw(leaf.shape), leaf.dtype), shapes)
  for path, value in (at or {}).items():
    trees.by_path(params)[path][3, 2] = value
  meta = {"config": config.to_dict(), "vocabulary_digest": digest_of(records)}
  save_params(workdir, params, meta, step=1)


@functools.cache
def _shapes(recipe: str, records, fields: tuple) -> dict:
  return small_run(small_config(recipe, records, dict(fields))).abstract_state.params


def taken(
  recipe: str,
  records,
  fields: dict,
  *,
  digest: str = "",
  directory: str = "",
  sizes: dict | None = None,
  say=str,
) -> dict[str, np.ndarray]:
  """The arrays that a run takes; what it leaves alone stays a shape. `say` gets what is logged.

  `sizes` are fields of the model whose shapes are filled; by default all of `fields`.
  """
  wanted = _shapes(recipe, records, tuple((fields if sizes is None else sizes).items()))
  origins = warm_start.origins(small_config(recipe, records, fields).to_dict())
  with lines.heard(say):
    params = warm_start.load_into(
      wanted, origins, vocabulary_digest=digest or digest_of(records), vocabulary_directory=directory
    )
  leaves, shapes = trees.by_path(params), trees.by_path(wanted)
  assert leaves.keys() == shapes.keys()
  for path, leaf in shapes.items():
    assert (leaves[path].shape, leaves[path].sharding) == (leaf.shape, leaf.sharding)
  return {path: np.asarray(leaf) for path, leaf in leaves.items() if isinstance(leaf, jax.Array)}


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
  """Bit-equal: the same names and numbers."""
  assert found.keys() == wanted.keys()
  for name, value in found.items():
    np.testing.assert_array_equal(value, wanted[name], err_msg=name)


@pytest.fixture(scope="session")
def union(small_records, tmp_path_factory):
  """The workdir of a first state with a generator, a mixture and three heads."""
  workdir = tmp_path_factory.mktemp("union")
  config = small_config("union", small_records, {"objectives.scl.head": "projection"})
  save_start(workdir, config, small_records)
  return workdir


@pytest.fixture(scope="session")
def coco_lm(small_records, tmp_path_factory):
  """The workdir of a first state of the COCO-LM recipe."""
  workdir = tmp_path_factory.mktemp("coco_lm")
  save_start(workdir, small_config("coco_lm", small_records), small_records, seed=1)
  return workdir


@pytest.fixture(scope="session")
def modern(small_records, tmp_path_factory):
  """The workdir of a first state of a pre-norm encoder, whose norms are not 1."""
  workdir = tmp_path_factory.mktemp("modern")
  save_start(workdir, small_config("mlm", small_records, MODERN), small_records, seed=2)
  return workdir
