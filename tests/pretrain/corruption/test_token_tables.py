"""The encoder's token table as the generator's plus a difference (GDES)."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.corruption import generator
from pretrain.recipe import GENERATOR_TERM
from tests.pretrain.recipe_cases import BATCH, WITHOUT_SCL
from tests.pretrain.small_recipe import COCO_LM, TOKENS, random_params, small_recipe, weighted

GDES = {"generator.share_embeddings": "gdes", "generator.sampling_dropout": "train"}
WORKED = {
  "encoder": {"embeddings": {"token": {"difference": jnp.array([[0.5], [0.0]])}}},
  "generator": {"embeddings": {"token": {"embedding": jnp.array([[1.0], [2.0]])}}},
}


def test_by_hand_each_loss_trains_one_of_the_two_tables():
  def loss(params):
    vectors, _ = generator.look_up_tokens(params, jnp.array([[0]]), pad_id=1)
    own = params["generator"]["embeddings"]["token"]["embedding"]
    return own[0, 0] ** 2 + 50.0 * vectors[0, 0, 0] ** 3

  value, gradient = jax.value_and_grad(loss)(WORKED)
  assert value == 169.75
  assert gradient["generator"]["embeddings"]["token"]["embedding"].ravel().tolist() == [2.0, 0.0]
  assert gradient["encoder"]["embeddings"]["token"]["difference"].ravel().tolist() == [337.5, 0.0]


def test_whole_table_is_the_sum_for_every_reader_and_its_gradient_goes_to_the_difference():
  readers = {
    "joined": lambda params: generator.joined_tables(params)["encoder"]["embeddings"]["token"]["embedding"],
    "look_up": lambda params: generator.look_up_tokens(params, jnp.array([[1]]), pad_id=1)[1],
  }
  for read in readers.values():
    table, back = jax.vjp(read, WORKED)
    assert table.ravel().tolist() == [1.5, 2.0]
    (gradient,) = back(jnp.array([[3.0], [5.0]]))
    assert gradient["encoder"]["embeddings"]["token"]["difference"].ravel().tolist() == [3.0, 5.0]
    assert not np.any(gradient["generator"]["embeddings"]["token"]["embedding"])
  for params in ({"encoder": {"embeddings": {"token": {"embedding": 1}}}}, {"heads": {}}):
    assert generator.joined_tables(params) is params


def _gradients(fields, params=None):
  """A recipe, its parameters, and a function of term weights to ((loss, metrics), gradient)."""
  recipe = small_recipe(fields)
  params = random_params(recipe) if params is None else params
  masked = jax.jit(recipe.mask)(BATCH)
  totals = jax.jit(recipe.totals)(masked)

  def loss_fn(params, weights):
    return weighted(recipe, weights).loss_fn(params, masked, totals, train=True)

  run = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
  return recipe, params, lambda **weights: jax.device_get(run(params, recipe.term_weights | weights))


def test_detection_trains_the_difference_alone_and_the_generators_loss_the_generator_alone():
  _, _, run = _gradients({**COCO_LM, **WITHOUT_SCL, **GDES, "objectives.clm.weight": 0.0})
  (_, heavy), (_, light), (_, none) = run(), run(rtd_loss=1e-30), run(**{GENERATOR_TERM: 0.0})
  jax.tree.map(np.testing.assert_array_equal, heavy["generator"], light["generator"])
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(none["generator"]))
  difference = none["encoder"]["embeddings"]["token"]["difference"]
  assert not np.any(difference[TOKENS.pad]) and np.any(difference[TOKENS.cls])
  assert not np.any(run(rtd_loss=0.0)[1]["encoder"]["embeddings"]["token"]["difference"])


def test_without_a_difference_the_loss_is_that_of_one_table_and_its_gradient_the_sum_of_two():
  """Also of the crops, which are encoded with the whole table."""
  backbone = {"model.norm_placement": "pre", "model.mlp": "gated", "model.position": "rope"}
  fields = COCO_LM | GDES | backbone | {"model.relative_position": "none"}
  apart, params, run = _gradients(fields)
  token = params["encoder"]["embeddings"]["token"]
  token["difference"] = jnp.zeros_like(token["difference"])
  assert not np.any(apart.init(jax.random.key(0))["encoder"]["embeddings"]["token"]["difference"])
  own = params["generator"]["embeddings"]
  one = generator.with_token(params, embedding=own["token"]["embedding"])
  one["generator"] = params["generator"] | {"embeddings": {n: v for n, v in own.items() if n != "token"}}
  (loss, _), gradient = run()
  _, _, run_one = _gradients(fields | {"generator.share_embeddings": "tokens"}, one)
  (expected, _), whole = run_one()
  assert loss == expected
  parts = gradient["generator"]["embeddings"]["token"]["embedding"]
  parts = parts + gradient["encoder"]["embeddings"]["token"]["difference"]
  table = whole["encoder"]["embeddings"]["token"]["embedding"]
  np.testing.assert_allclose(parts, table, atol=1e-5 * np.abs(table).max())
