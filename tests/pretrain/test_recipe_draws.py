"""Run: pytest tests/pretrain/test_recipe_draws.py. Which pass has dropout, who trains the table."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pretrain.small_recipe import COCO_LM, random_params, small_batch, small_recipe

# Compiling takes far longer than running here; unoptimised machine code halves it.
FAST_COMPILE = {"xla_backend_optimization_level": 0}
BATCH = small_batch(8, lengths=[16, 12, 16, 7, 16, 16, 9, 16])


@pytest.mark.parametrize("mode, is_without_dropout", [("eval", True), ("train", False)])
def test_samples_come_from_a_pass_without_dropout_unless_the_mode_says_otherwise(mode, is_without_dropout):
  recipe = small_recipe({**COCO_LM, "generator.sampling_dropout": mode})
  params = random_params(recipe)
  corrupt = jax.jit(
    lambda params, train: recipe.corrupt(params, recipe.mask(BATCH), train=train)[0].input_ids,
    static_argnums=1,
    compiler_options=FAST_COMPILE,
  )
  # The noise of the draw is the same: other tokens can only come from other logits.
  assert np.array_equal(corrupt(params, True), corrupt(params, False)) == is_without_dropout


def test_the_two_views_of_a_sequence_have_dropout_of_their_own():
  recipe = small_recipe({"objectives.scl.weight": 1.0})
  same = BATCH._replace(given={"selected": jnp.zeros(BATCH.ids.shape, bool), "crop_ids": BATCH.ids})
  params = random_params(recipe)

  def distance(train: bool) -> float:
    view = jax.jit(functools.partial(recipe.view, train=train), compiler_options=FAST_COMPILE)
    found, _ = view(params, recipe.mask(same))
    return float(np.max(np.abs(np.asarray(found.hidden)[:, 0] - found.crop_hidden)))

  assert distance(train=False) < 1e-4  # nothing is masked or cut: one text twice
  assert distance(train=True) > 0.1


def test_the_generators_loss_trains_every_row_of_the_shared_table():
  recipe = small_recipe({**COCO_LM, "generator.share_embeddings": "tokens"})
  params = random_params(recipe)
  table = params["encoder"]["embeddings"].pop("token")

  def loss(table):
    embeddings = params["encoder"]["embeddings"] | {"token": table}
    whole = params | {"encoder": params["encoder"] | {"embeddings": embeddings}}
    return recipe.corrupt(whole, recipe.mask(BATCH), train=True)[1].term.loss

  gradient = jax.jit(jax.grad(loss), compiler_options=FAST_COMPILE)(table)["embedding"]
  # An output softmax reaches all tokens, also those that no input has.
  assert np.all(np.any(np.asarray(gradient) != 0, axis=-1))


def test_the_temperature_of_sampling_follows_the_progress_and_is_a_metric():
  changing = {"generator.temperature_start": 50.0, "generator.temperature_decay": 0.1}
  recipe, usual = small_recipe({**COCO_LM, **changing}), small_recipe(COCO_LM)
  params, found = random_params(recipe), []
  for each, progress in ((recipe, 0.0), (recipe, 1.0), (usual, 0.0)):
    masked = each.mask(small_batch(8, progress=progress))
    corrupt = jax.jit(functools.partial(each.corrupt, train=False), compiler_options=FAST_COMPILE)
    corrupted, draws = corrupt(params, masked)
    found.append((corrupted.input_ids, draws.metrics))
  temperatures = [metrics.get("generator_temperature", (None,))[0] for _, metrics in found]
  assert temperatures[0] == 50.0 and abs(temperatures[1] - 1.0022245) < 1e-6 and temperatures[2] is None
  (hot, _), (cold, _), (at_one, _) = found
  assert np.sum(hot != at_one) > 0 and np.sum(cold != at_one) <= 1
