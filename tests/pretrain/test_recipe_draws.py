"""Run: pytest tests/pretrain/test_recipe_draws.py. What is drawn, and which pass has dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.pretrain.recipe_cases import BATCH, masked
from tests.pretrain.small_recipe import COCO_LM, random_params, small_batch, small_recipe


def _corrupt(recipe, *, train: bool):
  """`recipe.corrupt` of masked batches as one program."""
  return jax.jit(functools.partial(recipe.corrupt, train=train))


def test_samples_come_from_a_pass_without_dropout_unless_the_mode_says_otherwise():
  recipes = [small_recipe({**COCO_LM, "generator.sampling_dropout": mode}) for mode in ("eval", "train")]
  params, batch = random_params(recipes[0]), recipes[0].mask(BATCH)
  without = _corrupt(recipes[0], train=False)(params, batch)[0].input_ids
  in_eval, in_train = (_corrupt(recipe, train=True)(params, batch)[0].input_ids for recipe in recipes)
  # The noise of the draw is the same: other tokens can only come from other logits.
  np.testing.assert_array_equal(in_eval, without)
  assert not np.array_equal(in_train, without)


def test_every_step_draws_its_own_masks_and_samples():
  recipe = small_recipe(COCO_LM)
  next_step = small_batch(8, step=1)._replace(ids=BATCH.ids)
  chosen = masked("coco_lm").corrupted.masking.selected
  assert not np.array_equal(masked("coco_lm", next_step).corrupted.masking.selected, chosen)
  corrupt, params = _corrupt(recipe, train=False), random_params(recipe)
  first, again, other = (
    corrupt(params, recipe.mask(batch._replace(given={"selected": chosen})))[0].input_ids
    for batch in (BATCH, BATCH, next_step)
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


def test_the_two_views_of_a_sequence_have_dropout_of_their_own():
  recipe = small_recipe({"objectives.scl.weight": 1.0})
  # Nothing is masked or cut: one text twice, whose states would be the same.
  same = BATCH._replace(given={"selected": jnp.zeros(BATCH.ids.shape, bool), "crop_ids": BATCH.ids})
  view = jax.jit(functools.partial(recipe.view, train=True))
  found, _ = view(random_params(recipe), recipe.mask(same))
  assert np.max(np.abs(np.asarray(found.hidden)[:, 0] - found.crop_hidden)) > 0.1


def test_the_temperature_of_sampling_follows_the_progress_and_is_a_metric():
  changing = {"generator.temperature_start": 50.0, "generator.temperature_decay": 0.1}
  recipe = small_recipe({**COCO_LM, **changing})
  params, corrupt = random_params(recipe), _corrupt(recipe, train=False)
  (hot, of_hot), (cold, of_cold) = (
    corrupt(params, recipe.mask(small_batch(8, progress=progress))) for progress in (0.0, 1.0)
  )
  found = [float(draws.metrics["generator_temperature"][0]) for draws in (of_hot, of_cold)]
  np.testing.assert_allclose(found, [50.0, 1.0022245], rtol=1e-6)
  usual = small_recipe(COCO_LM)
  at_one, draws = _corrupt(usual, train=False)(params, usual.mask(small_batch(8)))
  assert "generator_temperature" not in draws.metrics
  assert np.sum(hot.input_ids != at_one.input_ids) > 0 and np.sum(cold.input_ids != at_one.input_ids) <= 1
