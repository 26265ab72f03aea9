"""Run: pytest tests/pretrain/test_recipe_gradients.py. Which loss trains what, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pretrain.recipe_cases import (
  masked,
  params_of,
  recipe_of,
  result_of,
  token_table,
  totals_of,
  zero_leaves,
)
from tests.pretrain.small_recipe import TOKENS, VOCAB_SIZE, weighted

NO_GENERATOR_LOSS = {"generator_loss": 0.0}


def test_coco_lm_trains_the_generator_by_its_masked_lm_loss_only():
  _, metrics, gradient = result_of("coco_lm", **NO_GENERATOR_LOSS)
  assert not [name for name in metrics if name.startswith("mixture_weight")]  # of a single head
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["generator"]))
  assert zero_leaves(gradient["encoder"]) == []
  of_generator = result_of("coco_lm", rtd_loss=0.0, clm_loss=0.0, scl_loss=0.0)[2]
  assert zero_leaves(of_generator["generator"]) == []
  # An output softmax reaches all tokens of the shared table, also those that no input has.
  assert np.all(np.any(token_table(of_generator) != 0, axis=-1))


@pytest.fixture(scope="module")
def of_amos():
  """Gradients of AMOS's detection loss alone: of the parameters, and of offsets of the generator's states."""
  recipe, totals = recipe_of("amos"), totals_of("amos", masked("amos"))
  detection = weighted(recipe, recipe.term_weights | NO_GENERATOR_LOSS)

  def loss(params, offsets, batch):
    batch = batch._replace(batch=batch.batch._replace(given={"generator_offsets": offsets}))
    return detection.loss_fn(params, batch, totals, train=True)[0]

  gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
  return jax.device_get(gradient(params_of("amos"), jnp.zeros((4, 8, 16, 32)), masked("amos")))


def test_amos_trains_the_generators_trunk_and_mixture_through_rtd_and_its_head_not_at_all(of_amos):
  gradient = of_amos[0]["generator"]
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["mlm_head"]))
  for part in ("trunk", "mixture", "embeddings"):
    assert zero_leaves(gradient[part]) == []


def test_amos_reverses_the_gradient_of_the_generator_and_of_nothing_else(of_amos):
  reversed_, forward = of_amos[0], result_of("amos_forward", **NO_GENERATOR_LOSS)[2]
  pairs = list(zip(jax.tree.leaves(reversed_["generator"]), jax.tree.leaves(forward["generator"])))
  # The softmax makes gradients of key biases zero: what is left there is rounding, measured by the largest.
  rounding = 1e-7 * max(np.max(np.abs(b)) for _, b in pairs)
  for a, b in pairs:
    np.testing.assert_allclose(a, -b, rtol=1e-5, atol=max(1e-5 * np.max(np.abs(b)), rounding))
  for part in ("trunk", "embeddings"):
    pair = (dict(tree["encoder"][part]) for tree in (reversed_, forward))
    a, b = ({k: v for k, v in tree.items() if k != "token"} for tree in pair)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)
  # Both signs share the look-up's gradient; the token table also feeds the generator's input.
  assert not np.allclose(token_table(reversed_), -token_table(forward), rtol=0.1)


def test_amos_sends_the_reversed_gradient_to_hidden_states_at_masked_positions_only(of_amos):
  gradient, selected = of_amos[1], np.asarray(masked("amos").corrupted.masking.selected)
  assert np.all(gradient[1:, ~selected] == 0)
  assert np.all(np.any(gradient[1:, selected] != 0, axis=-1))
  assert np.any(gradient[0, ~selected] != 0)  # the first block reads every token


def test_the_padding_row_of_the_table_gets_exactly_no_gradient_from_rtd_and_scl():
  table = token_table(result_of("coco_lm", **NO_GENERATOR_LOSS, clm_loss=0.0)[2])
  assert np.all(table[TOKENS.pad] == 0)
  assert np.any(table[TOKENS.cls] != 0)
  # The output softmax of the corrective LM does train it.
  assert np.any(token_table(result_of("coco_lm", **NO_GENERATOR_LOSS)[2])[TOKENS.pad] != 0)


def test_a_frozen_generator_gets_exactly_no_gradient_and_proposes_from_its_own_table():
  loss, _, gradient = result_of("frozen_generator")
  recipe, params = recipe_of("frozen_generator"), params_of("frozen_generator")
  assert "generator_loss" not in recipe.term_weights and np.isfinite(loss)
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["generator"]))
  assert zero_leaves(gradient["encoder"]) == []
  assert params["generator"]["embeddings"]["token"]["embedding"].shape == (VOCAB_SIZE, 32)
  corrupt = jax.jit(lambda params, batch: recipe.corrupt(params, batch, train=True)[0].input_ids)
  usual, other_encoder, other_generator = (
    corrupt(
      params | {name: jax.tree.map(jnp.negative, params[name]) for name in negated},
      masked("frozen_generator"),
    )
    for negated in ((), ("encoder",), ("generator",))
  )
  np.testing.assert_array_equal(other_encoder, usual)
  assert not np.array_equal(other_generator, usual)


def test_frozen_embeddings_get_exactly_no_gradient_and_the_rest_does():
  assert zero_leaves(result_of("frozen_embeddings")[2]) == ["encoder/embeddings/token/embedding"]
