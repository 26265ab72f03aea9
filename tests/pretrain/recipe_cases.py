"""Recipes, their compiled gradients and results, shared by the tests of `pretrain/recipe.py`."""

import functools

import jax
import numpy as np

from pretrain.recipe import Batch, MaskedBatch, Recipe
from tests.pretrain.small_recipe import (
  AMOS,
  COCO_LM,
  UNION,
  random_params,
  small_batch,
  small_recipe,
  weighted,
)

OWN_POSITIONS = {"generator.share_embeddings": "tokens"}  # the generator's positions and norm are its own
RTD = {"corruption.kind": "generator", "objectives.rtd.weight": 50.0, **OWN_POSITIONS}
WITHOUT_SCL = {"objectives.scl.weight": 0.0}  # and without its second pass of the encoder
# Without dropout one pass of the generator trains and samples, whatever the mode.
AMOS_ONE_PASS = {
  **AMOS,
  "generator.sampling_dropout": "eval",
  "model.dropout": 0.0,
  "model.attention_dropout": 0.0,
}
RECIPES = {
  "union": UNION,
  "coco_lm": {**COCO_LM, **OWN_POSITIONS},
  "amos": AMOS_ONE_PASS,
  "amos_forward": {**AMOS_ONE_PASS, "generator.reversal_multiplier": 1.0},
  "frozen_generator": {**RTD, "generator.frozen": True},
  "frozen_embeddings": {
    **COCO_LM,
    **WITHOUT_SCL,
    "objectives.taco.weight": 1.0,
    "model.freeze_embeddings": "random",
  },
}
BATCH = small_batch(8, lengths=[16, 12, 16, 7, 16, 16, 9, 16])


@functools.cache
def recipe_of(name: str) -> Recipe:
  """The recipe of a name above."""
  return small_recipe(RECIPES[name])


@functools.cache
def params_of(name: str) -> dict:
  """Its parameters, random."""
  return random_params(recipe_of(name))


@functools.cache
def _mask(name: str):
  return jax.jit(recipe_of(name).mask)


def masked(name: str, batch: Batch = BATCH) -> MaskedBatch:
  """A batch with the masks that a recipe draws."""
  return _mask(name)(batch)


@functools.cache
def _compiled(name: str):
  def loss_fn(params, weights, masked, totals):
    return weighted(recipe_of(name), weights).loss_fn(params, masked, totals, train=True)

  return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))


def gradient_of(name: str, masked: MaskedBatch, totals: dict, **weights: float):
  """((loss, metrics), gradient) with dropout, in numpy; `weights` of terms replace the recipe's."""
  weights = recipe_of(name).term_weights | weights
  return jax.device_get(_compiled(name)(params_of(name), weights, masked, totals))


def totals_of(name: str, masked: MaskedBatch) -> dict[str, np.ndarray]:
  """Totals of the terms of a masked batch."""
  return jax.device_get(recipe_of(name).totals(masked))


@functools.cache
def result_of(name: str, **weights: float):
  """Loss, metrics and gradient of `BATCH`, in numpy; `weights` as those of `gradient_of`."""
  (loss, metrics), gradient = gradient_of(name, masked(name), totals_of(name, masked(name)), **weights)
  return loss, metrics, gradient


def token_table(gradient: dict) -> np.ndarray:
  """[vocab, embed] of the encoder's token table."""
  return gradient["encoder"]["embeddings"]["token"]["embedding"]


def zero_leaves(tree) -> list[str]:
  """'a/b/c' of every leaf without a non-zero element."""
  leaves = jax.tree.leaves_with_path(tree)
  return ["/".join(part.key for part in path) for path, leaf in leaves if not np.any(leaf)]
