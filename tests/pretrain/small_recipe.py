"""A recipe small enough to differentiate in a test: 2 layers x 32, 97 tokens, blocks of 16."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from configs import base
from pretrain.build import build
from pretrain.corruption.masking import TokenIds
from pretrain.ops import row_random
from pretrain.recipe import GENERATOR_TERM, Batch, Recipe
from tests.pretrain.one_program import one_program

VOCAB_SIZE = 97  # a prime: a dimension that is a multiple of it holds the vocabulary
LENGTH = 16
TOKENS = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=VOCAB_SIZE)

_row_keys = one_program(row_random.step_row_keys)

_SMALL = {
  "model.vocab_size": VOCAB_SIZE,
  "model.hidden_size": 32,
  "model.num_layers": 2,
  "model.num_heads": 2,
  "model.mlp_size": 64,
  "model.max_length": LENGTH,
  "model.relative_buckets": 8,
  "model.relative_max_distance": 12,
  "model.init_stddev": 0.1,  # at 0.02 tiny models say nothing: gradients would hide below rounding
  "model.dtype": "float32",
  "model.vocab_chunk_rows": 1_024,
  "generator.num_layers": 2,
  "objectives.taco.num_negatives": 4,
  "objectives.taco.group_size": 4,
  "objectives.scl.group_size": 4,
}

COCO_LM = {
  "corruption.kind": "generator",
  "objectives.rtd.weight": 50.0,
  "objectives.clm.weight": 1.0,
  "objectives.scl.weight": 1.0,
}

AMOS = {
  "corruption.kind": "generator",
  "generator.num_layers": 3,
  "generator.mlm_layers": (1, 2, 3),
  "generator.share_embeddings": "tokens",
  "generator.sampling_dropout": "zero",
  "generator.mixture": "adversarial",
  "objectives.rtd.weight": 50.0,
}

# A rotary pre-norm encoder with windows.
MODERN = {
  "model.relative_position": "none",
  "model.position": "rope",
  "model.window": 6,
  "model.global_every": 2,
  "model.norm_placement": "pre",
  "model.norm_bias": False,
  "model.attention_bias": False,
  "model.mlp_bias": False,
  "model.mlp": "gated",
}

# Disentangled attention, and DeBERTaV3's training on it.
DEBERTA = {
  "model.relative_position": "disentangled",
  "model.position": "none",
  "model.relative_buckets": 16,
  "corruption.kind": "generator",
  "generator.share_embeddings": "gdes",
  "objectives.rtd.weight": 50.0,
  "objectives.rtd.head": "context",
}

# Every objective on AMOS's corruption; `mlm` reads the corrupted input here, which no paper does.
UNION = {
  **AMOS,
  "objectives.clm.weight": 1.0,
  "objectives.scl.weight": 1.0,
  "objectives.taco.weight": 1.0,
  "objectives.all_token.weight": 1.0,
  "objectives.mlm.weight": 1.0,
}


def small_recipe(fields: dict | None = None, *, rows_per_device: int = 1) -> Recipe:
  """The recipe of the base config made small, with `fields` ({'a.b': value}) on top."""
  config = base.get_config()
  config.update_from_flattened_dict({**_SMALL, **(fields or {})})
  return build(config, TOKENS, rows_per_device=rows_per_device)


def weighted(recipe: Recipe, weights: Mapping[str, jax.Array]) -> Recipe:
  """The recipe with other weights of its terms, which may be traced: one program for any of them."""
  objectives = {
    name: dataclasses.replace(objective, weight=weights[next(iter(objective.terms))])
    for name, objective in recipe.objectives.items()
  }
  settings = recipe.generator
  if recipe.trains_generator:
    settings = dataclasses.replace(settings, loss_weight=weights[GENERATOR_TERM])
  return dataclasses.replace(recipe, objectives=objectives, generator=settings)


def small_ids(
  rows: int, *, length: int = LENGTH, lengths: list[int] | None = None, seed: int = 0
) -> np.ndarray:
  """[rows, length] int32: [CLS], words, [SEP], padding."""
  random = np.random.default_rng(seed)
  ids = random.integers(5, VOCAB_SIZE, (rows, length)).astype(np.int32)
  ids[:, 0] = TOKENS.cls
  for row, end in enumerate(lengths or [length] * rows):
    ids[row, max(end - 1, 0)] = TOKENS.sep
    ids[row, end:] = TOKENS.pad
  return ids


def small_batch(
  rows: int = 4,
  *,
  length: int = LENGTH,
  lengths: list[int] | None = None,
  step: int = 0,
  progress: float = 0.0,
) -> Batch:
  """A batch whose row i has key f(seed 0, step, i)."""
  ids = jnp.asarray(small_ids(rows, length=length, lengths=lengths))
  keys = _row_keys(0, np.asarray(step), np.arange(rows))
  return Batch(ids, keys, jnp.asarray(np.full((rows,), progress, np.float32)))


@one_program
def cut(batch: Batch, start: int, stop: int) -> Batch:
  """Rows start..stop of a batch, with the keys they have in it."""
  return jax.tree.map(lambda x: x[start:stop], batch)


def random_params(recipe: Recipe, *, seed: int = 0) -> dict:
  """Parameters of the recipe's shapes with no leaf at 0 or 1, so that no gradient is zero by symmetry.

  Drawn by numpy: compiling `init` would take longer than most tests.
  """
  random = np.random.default_rng(seed)

  def draw(path, leaf):
    mean = 1.0 if path[-1].key == "scale" else 0.0
    return jnp.asarray(np.float32(mean + 0.15 * random.standard_normal(leaf.shape)))

  return jax.tree.map_with_path(draw, jax.eval_shape(recipe.init, jax.random.key(0)))
