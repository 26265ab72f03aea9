"""Recipes, their compiled gradients and results, shared by the tests of `pretrain/recipe.py`."""

import functools

import jax
import numpy as np

from pretrain.recipe import Batch, MaskedBatch, Recipe
from tests.pretrain.small_recipe import AMOS, COCO_LM, UNION, random_params, small_batch, small_recipe

OWN_POSITIONS = {"generator.share_embeddings": "tokens"}  # the generator's positions and norm are its own
WITHOUT_MLM = {"generator.loss_weight": 0.0}
RTD = {"corruption.kind": "generator", "objectives.rtd.weight": 50.0, **OWN_POSITIONS}
RECIPES = {
  "union": UNION,
  "coco_lm": {**COCO_LM, **OWN_POSITIONS},
  "coco_lm_eval_without_mlm": {**COCO_LM, **OWN_POSITIONS, **WITHOUT_MLM},
  "coco_lm_train_without_mlm": {
    **COCO_LM,
    **OWN_POSITIONS,
    **WITHOUT_MLM,
    "generator.sampling_dropout": "train",
  },
  "rtd_scl_without_mlm": {**COCO_LM, **OWN_POSITIONS, **WITHOUT_MLM, "objectives.clm.weight": 0.0},
  "amos": AMOS,
  "amos_without_mlm": {**AMOS, **WITHOUT_MLM},
  "amos_without_mlm_forward": {**AMOS, **WITHOUT_MLM, "generator.reversal_multiplier": 1.0},
  "frozen_generator": {**COCO_LM, "generator.frozen": True},
  "frozen_embeddings": {**UNION, "model.freeze_embeddings": "random"},
}
# Compiling takes far longer than running here; unoptimised machine code halves it (12 s to 6 s).
FAST_COMPILE = {"xla_backend_optimization_level": 0}
BATCH = small_batch(8, lengths=[16, 12, 16, 7, 16, 16, 9, 16])


@functools.cache
def recipe_of(name: str) -> Recipe:
  """The recipe of a name above."""
  return small_recipe(RECIPES[name])


@functools.cache
def params_of(name: str) -> dict:
  """Its parameters, random."""
  return random_params(recipe_of(name))


def masked(name: str, batch: Batch = BATCH) -> MaskedBatch:
  """A batch with the masks that a recipe draws."""
  return recipe_of(name).mask(batch)


@functools.cache
def compiled(name: str):
  """(params, masked batch, totals) -> ((loss, metrics), gradient), dropout on."""
  loss_fn = functools.partial(recipe_of(name).loss_fn, train=True)
  return jax.jit(jax.value_and_grad(loss_fn, has_aux=True), compiler_options=FAST_COMPILE)


@functools.cache
def result_of(name: str):
  """Loss, metrics and gradient of `BATCH`, in numpy."""
  totals = recipe_of(name).totals(masked(name))
  (loss, metrics), gradient = compiled(name)(params_of(name), masked(name), totals)
  return jax.tree.map(np.asarray, (loss, metrics, gradient))


def token_table(gradient: dict) -> np.ndarray:
  """[vocab, embed] of the encoder's token table."""
  return gradient["encoder"]["embeddings"]["token"]["embedding"]


def zero_leaves(tree) -> list[str]:
  """'a/b/c' of every leaf without a non-zero element."""
  leaves = jax.tree.leaves_with_path(tree)
  return ["/".join(part.key for part in path) for path, leaf in leaves if not np.any(leaf)]
