"""Run: pytest tests/pretrain/test_recipe.py. Whole recipes: terms, totals, batches, corruptions."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.corruption.masking import Masking
from pretrain.objectives.views import Corrupted
from pretrain.recipe import corruption_metrics, mixture_metrics
from tests.pretrain.recipe_cases import (
  BATCH,
  RTD,
  gradient_of,
  masked,
  params_of,
  recipe_of,
  result_of,
  totals_of,
  zero_leaves,
)
from tests.pretrain.small_recipe import (
  AMOS,
  COCO_LM,
  TOKENS,
  UNION,
  cut,
  random_params,
  small_batch,
  small_recipe,
)

TERMS = {
  "mlm": "masked_lm_loss",
  "rtd": "rtd_loss",
  "clm": "clm_loss",
  "all_token": "all_token_loss",
  "scl": "scl_loss",
  "taco": "taco_loss",
}

# The union of everything.


def test_the_union_trains_every_parameter_and_its_loss_is_the_weighted_sum_of_means():
  loss, metrics, gradient = result_of("union")
  weights, totals = recipe_of("union").term_weights, totals_of("union", masked("union"))
  assert weights == {"generator_loss": 1.0, **dict.fromkeys(TERMS.values(), 1.0), "rtd_loss": 50.0}
  assert all(metrics[name][0] > 0 for name in weights)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((loss, metrics, gradient)))
  assert zero_leaves(gradient) == []
  expected = sum(weights[name] * metrics[name][0] / totals[name] for name in weights)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_totals_count_masked_tokens_tokens_and_anchors():
  totals = totals_of("union", masked("union"))
  tokens = int(np.sum(BATCH.ids != TOKENS.pad))
  number = float(np.sum(masked("union").corrupted.masking.weights))
  assert 0 < number < tokens and totals == {
    **dict.fromkeys(("generator_loss", "masked_lm_loss", "clm_loss"), number),
    **dict.fromkeys(("rtd_loss", "all_token_loss", "taco_loss"), tokens),
    "scl_loss": 16,
  }
  weights = {name: result_of("union")[1][name][1] for name in totals}
  assert {name: float(total) for name, total in totals.items()} == weights


def test_a_group_of_padding_changes_nothing():
  half = masked("union", cut(BATCH, 0, 4))
  ids = np.array(BATCH.ids)
  ids[4:] = TOKENS.pad
  padded = masked("union", BATCH._replace(ids=ids))
  totals = totals_of("union", half)
  assert totals_of("union", padded) == totals
  (found, _), of_padded = gradient_of("union", padded, totals)
  (expected, _), of_half = gradient_of("union", half, totals)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  for a, b in zip(jax.tree.leaves(of_padded), jax.tree.leaves(of_half)):
    np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(np.max(np.abs(b)))))


def test_a_batch_of_padding_gives_zero_and_a_zero_gradient():
  empty = masked("union", BATCH._replace(ids=np.full(BATCH.ids.shape, TOKENS.pad, np.int32)))
  (loss, _), gradient = gradient_of("union", empty, totals_of("union", empty))
  assert float(loss) == 0.0
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


# Switched off is absent.


def test_an_objective_of_weight_zero_has_no_term_no_total_and_no_metric():
  for off in (("mlm", "clm", "scl"), ("rtd", "all_token", "taco")):
    recipe = small_recipe({**UNION, **{f"objectives.{objective}.weight": 0.0 for objective in off}})
    gone = {TERMS[objective] for objective in off}
    expected = {"generator_loss", *TERMS.values()} - gone
    assert set(recipe.term_weights) == expected
    params = jax.eval_shape(recipe.init, jax.random.key(0))
    batch = jax.eval_shape(recipe.mask, BATCH)
    totals = jax.eval_shape(recipe.totals, batch)
    assert set(totals) == expected
    _, metrics = jax.eval_shape(functools.partial(recipe.loss_fn, train=True), params, batch, totals)
    assert expected <= set(metrics) and not gone & set(metrics)


def test_an_objective_switched_off_does_not_change_the_initial_values_of_the_others():
  def initial(recipe):
    params = jax.jit(recipe.init)(jax.random.key(0))
    return params["encoder"], params["heads"]["rtd"]

  whole = {**RTD, "objectives.scl.weight": 1.0, "objectives.scl.head": "projection"}
  without = {**whole, "objectives.scl.weight": 0.0}
  whole["objectives.mlm.weight"] = 1.0  # stands before the one that stays
  jax.tree.map(np.testing.assert_array_equal, *(initial(small_recipe(fields)) for fields in (without, whole)))


# Metrics.


def test_rates_are_of_tokens_and_what_was_left_out_is_of_rows():
  ids = jnp.asarray([[0, 7, 8, 2], [0, 7, 2, TOKENS.pad], [TOKENS.pad] * 4])
  selected, nothing = jnp.zeros((3, 4), bool).at[0, 1:3].set(True), jnp.zeros((3, 2))
  chosen = Masking(ids, nothing, nothing, selected, jnp.asarray([3, 1, 0]))
  corrupted = Corrupted(ids, ids != TOKENS.pad, chosen, ids.at[0, 2].set(9).at[2, 1].set(9), nothing)
  found = {name: tuple(map(float, pair)) for name, pair in corruption_metrics(corrupted).items()}
  assert found == {"mask_rate": (2, 7), "replace_rate": (1, 7), "mask_overflow": (4, 2)}


def test_mixture_weights_are_means_over_the_tokens_that_were_chosen():
  weights = jnp.asarray([[[0.25, 0.75], [0.5, 0.5], [0.0, 1.0]]])
  for is_separate, names in ((False, ("layer_2", "layer_4")), (True, ("generator_0", "generator_1"))):
    settings = types.SimpleNamespace(is_separate=is_separate, mlm_layers=(2, 4))
    found = mixture_metrics(weights, jnp.asarray([[1.0, 1.0, 0.0]]), settings)
    means = {name: float(total / weight) for name, (total, weight) in found.items()}
    assert means == {f"mixture_weight_{names[0]}": 0.375, f"mixture_weight_{names[1]}": 0.625}


# Precision, dropout.


def test_without_training_there_is_no_dropout_and_given_draws_are_used():
  recipe, params = recipe_of("coco_lm"), params_of("coco_lm")
  view = jax.jit(functools.partial(recipe.view, train=False))
  selected = masked("coco_lm").corrupted.masking.selected
  given = {"selected": selected, "sampled": np.full((8, 3), 50, np.int32), "crop_ids": BATCH.ids}
  first, second = (
    view(params, masked("coco_lm", BATCH._replace(given=given, row_keys=keys)))[0]
    for keys in (BATCH.row_keys, small_batch(8, step=1).row_keys)
  )
  np.testing.assert_array_equal(first.hidden, second.hidden)
  np.testing.assert_array_equal(first.crop_hidden, second.crop_hidden)
  np.testing.assert_array_equal(first.corrupted.input_ids, np.where(selected, 50, BATCH.ids))


# Other corruptions give what they say.


SEPARATE = {"generator.mlm_layers": (), "generator.separate_layers": (1, 2)}
GOOGLE = {"corruption.mask_rule": "electra_google", "corruption.mask_special": "none"}
CORRUPTIONS = {
  "random": {"corruption.kind": "random", "objectives.rtd.weight": 50.0},
  "schedule": {
    **AMOS,
    "generator.mixture": "schedule",
    "generator.temperature": 0.5,
    "generator.disallow_correct": True,
  },
  "separate": {**AMOS, "generator.mixture": "random_layer", **SEPARATE},
  "google": {**AMOS, **GOOGLE, "corruption.mask_rate": 0.3},
}


def _corrupted(name: str):
  recipe = small_recipe(CORRUPTIONS[name])
  params, batch = random_params(recipe), BATCH._replace(progress=jnp.full(8, 0.9))
  return params, *jax.jit(lambda params: recipe.corrupt(params, recipe.mask(batch), train=True))(params)


def test_replacements_are_at_chosen_positions_and_original_means_unchanged(subtests):
  ids = np.asarray(BATCH.ids)
  for name in CORRUPTIONS:
    with subtests.test(name):
      _, corrupted, draws = _corrupted(name)
      selected, found = np.asarray(corrupted.masking.selected), np.asarray(corrupted.input_ids)
      assert np.all(found[~selected] == ids[~selected]) and np.any(found != ids)
      np.testing.assert_array_equal(corrupted.is_original, found == ids)
      if name == "schedule":
        assert np.all(found[selected] != ids[selected])  # not the correct token
        np.testing.assert_array_equal(draws.mixture_weights, np.eye(3)[np.full((8, 3), 2)])  # the last third


def test_slots_of_one_position_give_the_encoder_the_token_that_detection_is_asked_about():
  params, corrupted, draws = _corrupted("google")
  positions, last = np.asarray(corrupted.masking.positions), corrupted.input_ids.shape[1] - 1
  used = positions <= last
  assert any(len({*row[each]}) < each.sum() for row, each in zip(positions, used)), "no position twice"
  ids = np.take_along_axis(np.asarray(corrupted.input_ids), np.minimum(positions, last), axis=1)
  rows = np.asarray(params["encoder"]["embeddings"]["token"]["embedding"])[ids]
  np.testing.assert_allclose(np.asarray(draws.embeddings)[used], rows[used], atol=1e-6)


# What is drawn, and which pass has dropout.


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
