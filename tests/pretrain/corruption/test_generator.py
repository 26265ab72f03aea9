"""Run: pytest tests/pretrain/corruption/test_generator.py"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.corruption import generator
from pretrain.models import encoder
from pretrain.ops.positions import take_positions
from pretrain.recipe import Recipe
from tests.pretrain.small_recipe import (
  AMOS,
  COCO_LM,
  MODERN,
  TOKENS,
  cut,
  random_params,
  small_batch,
  small_recipe,
)

BATCH = small_batch(4, lengths=[16, 11, 16, 0])
SIZES = {"generator.hidden_size": 16, "generator.mlp_size": 24, "generator.num_heads": 2}


def _run(recipe: Recipe, params: dict, batch, row_keys=None) -> generator.GeneratorOutput:
  masking = recipe.mask(batch).corrupted.masking
  arguments = (recipe.generator, masking, batch.ids != TOKENS.pad, TOKENS)
  return generator.run(params["generator"], params["encoder"]["embeddings"], *arguments, row_keys=row_keys)


def _output(recipe: Recipe, params: dict, row_keys=None, batch=BATCH) -> generator.GeneratorOutput:
  """The generator's output, of one program."""
  return jax.device_get(jax.jit(functools.partial(_run, recipe))(params, batch, row_keys))


def _head_losses(recipe: Recipe, params: dict) -> jax.Array:
  """[heads] losses, each of its own scores."""
  output, masking = _run(recipe, params, BATCH), recipe.mask(BATCH).corrupted.masking
  table = generator.token_table(params["generator"], params["encoder"]["embeddings"], recipe.generator)
  targets = take_positions(BATCH.ids, masking.positions)
  scores = generator.head_scores(output, table, targets, chunk=recipe.chunk)
  return jnp.stack([-jnp.sum(head.log_probs[..., 0] * masking.weights) for head in scores])


def _jacobian(recipe: Recipe, params: dict) -> dict:
  """The gradient of each head's loss, [heads, ...] in every leaf of the generator's parameters."""
  return jax.device_get(jax.jit(jax.jacrev(functools.partial(_head_losses, recipe)))(params))["generator"]


@pytest.fixture(scope="module")
def amos():
  recipe = small_recipe(AMOS)
  return recipe, random_params(recipe)


# What each form of sharing owns.


def test_the_generator_owns_what_it_does_not_share():
  found = {}
  for share in ("all", "tokens", "none", "gdes"):
    recipe = small_recipe({**COCO_LM, "generator.share_embeddings": share})
    found[share] = set(jax.eval_shape(recipe.init, jax.random.key(0))["generator"].get("embeddings", {}))
  own = {"position", "norm"}
  assert found == {"all": set(), "tokens": own, "none": own | {"token"}, "gdes": own | {"token"}}


def test_sharing_everything_reads_the_encoders_positions_and_norm():
  recipe = small_recipe(COCO_LM)
  params = random_params(recipe)

  def total(shared):
    moved = {**params, "encoder": {**params["encoder"], "embeddings": shared}}
    return jnp.sum(_run(recipe, moved, BATCH).features ** 2 * jnp.arange(32))

  gradient = jax.jit(jax.grad(total))(params["encoder"]["embeddings"])
  assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def test_a_narrow_generator_projects_the_table_for_input_and_output():
  fields = {**COCO_LM, **SIZES, "generator.share_embeddings": "tokens", "generator.projection": "table"}
  recipe = small_recipe(fields)
  params = random_params(recipe)
  own, output = params["generator"], _output(recipe, params)
  assert own["projection"]["kernel"].shape == (32, 16)
  assert own["embeddings"]["position"]["embedding"].shape == (16, 16)
  # MC-BERT's softmax runs over projected rows E W + b; the part with b is the same for every token.
  table = params["encoder"]["embeddings"]["token"]["embedding"]
  rows = table @ own["projection"]["kernel"] + own["projection"]["bias"]
  hidden = generator.heads.apply_transform(own["mlm_head"], recipe.generator.members[0], output.features[0])
  found, expected = (
    jax.nn.log_softmax(logits + own["mlm_head"]["bias"])
    for logits in (output.transformed[0] @ table.T, hidden @ rows.T)
  )
  np.testing.assert_allclose(found, expected, atol=1e-4)  # logits of about 30 in float32


def test_other_narrow_generators_widen_the_head_or_have_their_own_table():
  recipe = small_recipe({**COCO_LM, **SIZES, "generator.projection": "embeddings"})  # Google's
  params = random_params(recipe)
  assert "embeddings" not in params["generator"]
  assert params["generator"]["mlm_head"]["dense"]["kernel"].shape == (16, 32)
  output = _output(recipe, params)
  assert output.features.shape[-1] == 16 and output.transformed.shape[-1] == 32
  own_table = {"generator.share_embeddings": "none", "generator.projection": "none"}
  own = random_params(small_recipe({**COCO_LM, **SIZES, **own_table}))["generator"]
  # As a masked-LM encoder of that width, which it may be loaded from.
  alone = small_recipe({"model.hidden_size": 16, "model.mlp_size": 24, "objectives.mlm.weight": 1.0})
  expected = jax.eval_shape(alone.init, jax.random.key(0))
  part = {**expected["encoder"], "mlm_head": expected["heads"]["mlm"]}
  assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, part)


# Heads.


def test_heads_read_their_layers_at_the_masked_positions(amos):
  recipe, params = amos
  output = _output(recipe, params)
  slots = jax.eval_shape(recipe.mask, BATCH).corrupted.masking.positions.shape[1]
  assert output.features.shape == output.transformed.shape == (3, 4, slots, 32)
  assert output.biases.shape == (1, 97)
  deeper = _output(small_recipe({**AMOS, "generator.mlm_layers": (2, 3)}), params)
  np.testing.assert_allclose(deeper.features, output.features[1:], atol=1e-6)


def test_a_head_on_an_inner_layer_of_a_pre_norm_stream_reads_it_through_a_norm_of_its_own():
  recipe = small_recipe({**AMOS, **MODERN})
  params, (config,) = random_params(recipe), recipe.generator.members
  masking, mask = recipe.mask(BATCH).corrupted.masking, BATCH.ids != TOKENS.pad
  own = params["generator"] | {"token": params["encoder"]["embeddings"]["token"]}
  whole = {"embeddings": own["embeddings"] | {"token": own["token"]}, "trunk": own["trunk"]}
  _, states = encoder.encode(whole, config, masking.masked_ids, mask, pad_id=TOKENS.pad, collect="all")
  features = _output(recipe, params).features
  for layer in (0, 1):
    stream = np.asarray(take_positions(states.layers[layer], masking.positions))
    centred = stream - stream.mean(axis=-1, keepdims=True)
    scale = own["inner_norms"]["scale"][layer]
    expected = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5) * scale
    at = np.asarray(masking.weights) > 0
    np.testing.assert_allclose(features[layer][at], expected[at], atol=1e-4)


def test_each_block_of_layers_is_trained_by_its_own_head_only(amos):
  of_heads = _jacobian(*amos)
  layers = of_heads["trunk"]["layers"]["up"]["kernel"]  # [heads, layers, ...]
  np.testing.assert_array_equal(np.any(layers != 0, axis=(2, 3)), np.eye(3, dtype=bool))
  # The embeddings of the input are trained by the first block, the shared head and bias table by all.
  position = of_heads["embeddings"]["position"]["embedding"]
  np.testing.assert_array_equal(np.any(position != 0, axis=(1, 2)), [True, False, False])
  table = of_heads["trunk"]["relative_position"]["embedding"]
  for leaf in (*jax.tree.leaves(of_heads["mlm_head"]), table):
    assert np.all(np.any(leaf != 0, axis=tuple(range(1, leaf.ndim))))
  attached = _jacobian(small_recipe({**AMOS, "generator.detach_blocks": False}), amos[1])
  layers = attached["trunk"]["layers"]["up"]["kernel"]
  np.testing.assert_array_equal(np.any(layers != 0, axis=(2, 3)), np.tri(3, dtype=bool))


def _loss_and_metrics(recipe: Recipe, params: dict):
  """The loss and metrics of all heads together, each head's own loss and number of hits, and all tokens."""

  @jax.jit
  def of_output(params):
    masking = recipe.mask(BATCH).corrupted.masking
    output, targets = _run(recipe, params, BATCH), take_positions(BATCH.ids, masking.positions)
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    targets = targets.at[0].set(jnp.argmax(output.transformed[-1, 0] @ table.T + output.biases[-1], axis=-1))
    made = generator.loss_and_metrics(output, table, targets, masking.weights, recipe.generator, chunk=2)
    scores = generator.head_scores(output, table, targets, chunk=2)
    losses = [-jnp.sum(head.log_probs[..., 0] * masking.weights) for head in scores]
    hits = [jnp.sum((head.top_ids == targets) * masking.weights) for head in scores]
    return *made, losses, hits, jnp.sum(masking.weights)

  return jax.device_get(of_output(params))


def test_the_loss_is_the_sum_over_heads_and_metrics_name_the_layers(amos):
  loss, metrics, losses, hits, number = _loss_and_metrics(*amos)
  np.testing.assert_allclose(loss, sum(losses), rtol=1e-5)
  assert hits[2] == 3 and number == 7  # the first row's tokens are those that the last head prefers
  for layer in (1, 2, 3):
    np.testing.assert_allclose(
      metrics[f"generator_loss_layer_{layer}"], (losses[layer - 1], number), rtol=1e-5
    )
    assert metrics[f"generator_accuracy_layer_{layer}"] == (hits[layer - 1], number)
  np.testing.assert_allclose(metrics["generator_loss"], (loss, number), rtol=1e-6)
  one_head = small_recipe({**AMOS, "generator.mlm_layers": (3,)})
  metrics = _loss_and_metrics(one_head, random_params(one_head))[1]
  assert metrics.keys() == {"generator_accuracy", "generator_loss"}  # without a suffix


def test_separate_generators_have_trunks_heads_and_losses_of_their_own():
  recipe = small_recipe({**AMOS, "generator.mlm_layers": (), "generator.separate_layers": (1, 2)})
  params = random_params(recipe)
  members = params["generator"]
  assert [len(members[f"member_{i}"]["trunk"]["layers"]["up"]["kernel"]) for i in range(2)] == [1, 2]
  of_heads = _jacobian(recipe, params)
  for i in range(2):
    for leaf in jax.tree.leaves(of_heads[f"member_{i}"]):
      assert not np.any(leaf[1 - i])
    assert np.any(of_heads[f"member_{i}"]["mlm_head"]["bias"][i])
  loss, metrics, losses, hits, number = _loss_and_metrics(recipe, params)
  np.testing.assert_allclose(loss, sum(losses), rtol=1e-5)
  assert [metrics[f"generator_accuracy_generator_{i}"] for i in range(2)] == [(hit, number) for hit in hits]


# Dropout.


def test_dropout_needs_keys_and_depends_on_neither_the_batch_around_a_row_nor_another_generator():
  fields = {**COCO_LM, "generator.separate_layers": (1, 1), "generator.sampling_dropout": "train"}
  recipe = small_recipe(fields)
  params = random_params(recipe)
  params["generator"]["member_1"] = params["generator"]["member_0"]
  plain = _output(recipe, params).features
  whole = _output(recipe, params, row_keys=BATCH.row_keys).features
  np.testing.assert_array_equal(plain[0], plain[1])
  assert np.max(np.abs(whole - plain)) > 0.01 and np.max(np.abs(whole[0] - whole[1])) > 0.01
  half = cut(BATCH, 0, 2)
  part = _output(recipe, params, row_keys=half.row_keys, batch=half).features
  np.testing.assert_allclose(part, whole[:, :2], atol=1e-5)  # other matrix shapes, other rounding
