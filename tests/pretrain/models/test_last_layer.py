"""Run: pytest tests/pretrain/models/test_last_layer.py. A last layer computed only where it is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import encoder, layers
from pretrain.ops.positions import take_positions
from tests.pretrain import drawn
from tests.pretrain.models.small_encoder import CONFIG, IDS, KEYS, KINDS, MASK, drawn_parameters
from tests.pretrain.small_recipe import AMOS, TOKENS, random_params, small_batch, small_recipe

# Unused slots read beyond the row; row 2 has 5 tokens, and reads padding and one position twice.
READ = np.asarray([[1, 3, 15, 16], [0, 2, 5, 16], [4, 1, 1, 9], [7, 8, 9, 10]])
SEGMENTS = np.asarray(
  [[1] * 6 + [2] * 10, [1] * 12 + [0] * 4, [1, 1, 2, 2, 2] + [0] * 11, [3] * 16], np.int32
)


@pytest.mark.parametrize(
  "config, segments, platform",
  [
    (dataclasses.replace(CONFIG, dropout=0.4), None, "cpu"),
    (dataclasses.replace(CONFIG, relative_position="none", num_layers=1, attention="plain"), None, "gpu"),
    (dataclasses.replace(CONFIG, attention="pallas_tpu", num_layers=2), None, "cpu"),
    (dataclasses.replace(KINDS["modern"], num_layers=2, remat="cheap"), SEGMENTS, "cpu"),
    (dataclasses.replace(KINDS["ultra"], num_layers=2), SEGMENTS, "gpu"),
    (KINDS["pre_t5_window"], None, "cpu"),
    (KINDS["disentangled"], SEGMENTS, "cpu"),
  ],
  ids=["dropout", "one_layer_on_gpus", "kernels", "modern", "ultra_on_gpus", "pre_t5_window", "disentangled"],
)
def test_states_and_gradients_equal_those_of_the_whole_layer_with_its_dropout(
  config, segments, platform, monkeypatch
):
  monkeypatch.setattr(layers, "platform", lambda: platform)  # on GPUs rows are taken once
  config = dataclasses.replace(config, attention_dropout=0.3)
  params, probe = drawn_parameters(config), drawn.normal(7, *READ.shape, config.hidden_size)

  def total(params, few: bool):
    vectors = encoder.token_vectors(params["embeddings"]["token"]["embedding"], IDS, pad_id=TOKENS.pad)
    embedded = encoder.embed(params["embeddings"], config, vectors, MASK, KEYS, segments)
    options = {"segment_ids": segments, "detach_after": (config.num_layers - 1,)}
    arguments = (params["trunk"], config, embedded, MASK, KEYS)
    if few:
      states = encoder.run_trunk(*arguments, read=READ, **options).last
    else:
      states = take_positions(encoder.run_trunk(*arguments, **options).last, READ)
    return jnp.sum(states * probe), states

  run = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)
  ((_, found), gradient), ((_, expected), whole) = (jax.device_get(run(params, few)) for few in (True, False))
  np.testing.assert_allclose(found, expected, atol=1e-5)
  for (path, a), b in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(whole)):
    atol = 2e-5 * max(float(np.max(np.abs(b))), 0.5)
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))
    assert np.all((a == 0) == (b == 0)) or "bias" in jax.tree_util.keystr(path)


def test_the_loss_of_a_recipe_is_that_of_whole_last_layers():
  """Another objective needs every state of the encoder; offsets need those of the generator."""
  batch = small_batch(4, lengths=[16, 9, 3, 16])
  mlm, amos = small_recipe({"objectives.mlm.weight": 1.0}), small_recipe(AMOS)
  both = small_recipe({"objectives.mlm.weight": 1.0, "objectives.taco.weight": 1.0})
  offsets = {"generator_offsets": jnp.zeros((4, 4, 16, 32))}
  for (few, given_few), (whole, given), name in (
    ((mlm, {}), (both, {}), "masked_lm_loss"),
    ((amos, {}), (amos, offsets), "generator_loss"),
  ):
    params = random_params(few)
    found, expected = (
      jax.jit(lambda params, recipe=recipe, given=given: _metrics(recipe, params, batch, given))(params)
      for recipe, given in ((few, given_few), (whole, given))
    )
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


def _metrics(recipe, params, batch, given):
  masked = recipe.mask(batch._replace(given=given))
  return recipe.loss_fn(params, masked, recipe.totals(masked), train=True)[1]
