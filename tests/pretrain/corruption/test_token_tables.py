"""The encoder's token table as the generator's plus a difference (GDES)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.corruption import token_tables
from pretrain.recipe import GENERATOR_TERM
from tests.pretrain.recipe_cases import BATCH, FAST_COMPILE, WITHOUT_SCL
from tests.pretrain.small_recipe import COCO_LM, TOKENS, random_params, small_recipe, weighted

GDES = {"generator.share_embeddings": "gdes", "generator.sampling_dropout": "train"}
RTD_ALONE = {**COCO_LM, **WITHOUT_SCL, **GDES, "objectives.clm.weight": 0.0}
WORKED = {
  "encoder": {"embeddings": {"token": {"difference": jnp.array([[0.5], [0.0]])}}},
  "generator": {"embeddings": {"token": {"embedding": jnp.array([[1.0], [2.0]])}}},
}


def test_by_hand_each_loss_trains_one_of_the_two_tables():
  def loss(params):
    vectors, _ = token_tables.look_up(params, jnp.array([[0]]), pad_id=1)
    own = params["generator"]["embeddings"]["token"]["embedding"]
    return own[0, 0] ** 2 + 50.0 * vectors[0, 0, 0] ** 3

  value, gradient = jax.value_and_grad(loss)(WORKED)
  assert value == 169.75
  assert gradient["generator"]["embeddings"]["token"]["embedding"].ravel().tolist() == [2.0, 0.0]
  assert gradient["encoder"]["embeddings"]["token"]["difference"].ravel().tolist() == [337.5, 0.0]


def test_whole_table_is_the_sum_for_every_reader_and_its_gradient_goes_to_the_difference():
  readers = {
    "joined": lambda params: token_tables.joined(params)["encoder"]["embeddings"]["token"]["embedding"],
    "look_up": lambda params: token_tables.look_up(params, jnp.array([[1]]), pad_id=1)[1],
  }
  for read in readers.values():
    table, back = jax.vjp(read, WORKED)
    assert table.ravel().tolist() == [1.5, 2.0]
    (gradient,) = back(jnp.array([[3.0], [5.0]]))
    assert gradient["encoder"]["embeddings"]["token"]["difference"].ravel().tolist() == [3.0, 5.0]
    assert not np.any(gradient["generator"]["embeddings"]["token"]["embedding"])


def test_parameters_without_a_difference_are_returned_as_they_are():
  for params in ({"encoder": {"embeddings": {"token": {"embedding": 1}}}}, {"heads": {}}):
    assert token_tables.joined(params) is params


def _gradients(fields, params=None):
  """A recipe, its parameters, and a function of term weights to ((loss, metrics), gradient)."""
  recipe = small_recipe(fields)
  params = random_params(recipe) if params is None else params
  masked = jax.jit(recipe.mask, compiler_options=FAST_COMPILE)(BATCH)
  totals = jax.jit(recipe.totals, compiler_options=FAST_COMPILE)(masked)

  def loss_fn(params, weights):
    return weighted(recipe, weights).loss_fn(params, masked, totals, train=True)

  run = jax.jit(jax.value_and_grad(loss_fn, has_aux=True), compiler_options=FAST_COMPILE)
  return recipe, params, lambda **weights: jax.device_get(run(params, recipe.term_weights | weights))


@functools.cache
def _rtd_alone():
  return _gradients(RTD_ALONE)


def test_detection_gives_the_generator_exactly_no_gradient_whatever_its_weight():
  _, _, run = _rtd_alone()
  (_, heavy), (_, light), (_, none) = run(), run(rtd_loss=1e-30), run(**{GENERATOR_TERM: 0.0})
  jax.tree.map(np.testing.assert_array_equal, heavy["generator"], light["generator"])
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(none["generator"]))
  assert np.any(none["encoder"]["embeddings"]["token"]["difference"])


def test_generators_loss_gives_the_difference_exactly_no_gradient():
  _, _, run = _rtd_alone()
  difference = run(rtd_loss=0.0)[1]["encoder"]["embeddings"]["token"]["difference"]
  assert not np.any(difference)


def test_padding_row_of_the_difference_gets_exactly_no_gradient():
  _, _, run = _rtd_alone()
  difference = run()[1]["encoder"]["embeddings"]["token"]["difference"]
  assert not np.any(difference[TOKENS.pad]) and np.any(difference[TOKENS.cls])


@pytest.mark.parametrize("modern", [False, True])
def test_without_a_difference_the_loss_is_that_of_one_table_and_its_gradient_the_sum_of_two(modern):
  backbone = {"model.norm_placement": "pre", "model.mlp": "gated", "model.position": "rope"}
  fields = COCO_LM | WITHOUT_SCL | GDES | (backbone | {"model.relative_position": "none"} if modern else {})
  apart, params, run = _gradients(fields)
  token = params["encoder"]["embeddings"]["token"]
  token["difference"] = jnp.zeros_like(token["difference"])
  assert set(apart.init(jax.random.key(0))["encoder"]["embeddings"]["token"]) == {"difference"}
  own = params["generator"]["embeddings"]
  one = token_tables.with_token(params, embedding=own["token"]["embedding"])
  one["generator"] = params["generator"] | {"embeddings": {n: v for n, v in own.items() if n != "token"}}
  (loss, _), gradient = run()
  _, _, run_one = _gradients(fields | {"generator.share_embeddings": "tokens"}, one)
  (expected, _), whole = run_one()
  assert loss == expected
  parts = gradient["generator"]["embeddings"]["token"]["embedding"]
  parts = parts + gradient["encoder"]["embeddings"]["token"]["difference"]
  table = whole["encoder"]["embeddings"]["token"]["embedding"]
  np.testing.assert_allclose(parts, table, atol=1e-5 * np.abs(table).max())


def test_a_crop_is_encoded_with_the_whole_table():
  fields = {**COCO_LM, **GDES, "objectives.clm.weight": 0.0, "objectives.rtd.weight": 0.0}
  *_, run = _gradients(fields)
  gradient = run(**{GENERATOR_TERM: 0.0})[1]
  assert np.any(gradient["encoder"]["embeddings"]["token"]["difference"])
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["generator"]))
