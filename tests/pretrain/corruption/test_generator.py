"""Run: pytest tests/pretrain/corruption/test_generator.py"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.corruption import generator
from pretrain.ops.positions import take_positions
from tests.pretrain.small_recipe import AMOS, COCO_LM, TOKENS, cut, random_params, small_batch, small_recipe

BATCH = small_batch(4, lengths=[16, 11, 16, 0])
SIZES = {"generator.hidden_size": 16, "generator.mlp_size": 24, "generator.num_heads": 2}


def _run(recipe, params, *, row_keys=None, batch=BATCH):
  """The generator's output; compiled, because single operations would each compile for themselves."""
  return jax.jit(_run_eagerly, static_argnums=0)(_Static(recipe), params, batch, row_keys)


class _Static:
  """A recipe as a static argument: it holds a dict, so equality is identity of the recipe."""

  def __init__(self, recipe):
    self.recipe = recipe

  def __eq__(self, other):
    return self.recipe is other.recipe

  def __hash__(self):
    return id(self.recipe)


def _run_eagerly(static, params, batch, row_keys):
  recipe = static.recipe
  masking = recipe.mask(batch).corrupted.masking
  arguments = (recipe.generator, masking, batch.ids != TOKENS.pad, TOKENS)
  shared = params["encoder"]["embeddings"]
  return generator.run(params["generator"], shared, *arguments, row_keys=row_keys)


def _head_losses(recipe, params, output, *, batch=BATCH):
  masking = jax.jit(recipe.mask)(batch).corrupted.masking
  table = generator.token_table(params["generator"], params["encoder"]["embeddings"], recipe.generator)
  targets = take_positions(batch.ids, masking.positions)
  scores = generator.head_scores(output, table, targets, chunk=recipe.chunk)
  return [-jnp.sum(head.log_probs[..., 0] * masking.weights) for head in scores]


@pytest.fixture(scope="module")
def amos():
  recipe = small_recipe(AMOS)
  return recipe, random_params(recipe)


# What each form of sharing owns.


@pytest.mark.parametrize(
  "share, owned",
  [("all", set()), ("tokens", {"position", "norm"}), ("none", {"position", "norm", "token"})],
)
def test_the_generator_owns_what_it_does_not_share(share, owned):
  recipe = small_recipe({**COCO_LM, "generator.share_embeddings": share})
  params = jax.eval_shape(recipe.init, jax.random.key(0))
  assert set(params["generator"].get("embeddings", {})) == owned


def test_sharing_everything_reads_the_encoders_positions_and_norm():
  recipe = small_recipe(COCO_LM)
  params = random_params(recipe)

  def total(shared):
    moved = {**params, "encoder": {**params["encoder"], "embeddings": shared}}
    return jnp.sum(_run(recipe, moved).features ** 2 * jnp.arange(32))

  gradient = jax.jit(jax.grad(total))(params["encoder"]["embeddings"])
  assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def test_a_narrow_generator_projects_the_table_for_input_and_output():
  fields = {**COCO_LM, **SIZES, "generator.share_embeddings": "tokens", "generator.projection": "table"}
  recipe = small_recipe(fields)
  params = random_params(recipe)
  own = params["generator"]
  assert own["projection"]["kernel"].shape == (32, 16)
  assert own["embeddings"]["position"]["embedding"].shape == (16, 16)
  output = _run(recipe, params)
  assert output.features.shape[-1] == 16

  @jax.jit
  def log_softmaxes(own, table, output):
    # MC-BERT's softmax runs over projected rows E W + b; the part with b is the same for every token.
    rows = table @ own["projection"]["kernel"] + own["projection"]["bias"]
    hidden = generator.heads.apply_transform(own["mlm_head"], recipe.generator.members[0], output.features[0])
    logits = (output.transformed[0] @ table.T, hidden @ rows.T)
    return [jax.nn.log_softmax(of_table + own["mlm_head"]["bias"]) for of_table in logits]

  found, expected = log_softmaxes(own, params["encoder"]["embeddings"]["token"]["embedding"], output)
  np.testing.assert_allclose(found, expected, atol=1e-4)  # logits of about 30 in float32


def test_googles_projection_shares_wide_embeddings_and_widens_the_head():
  recipe = small_recipe({**COCO_LM, **SIZES, "generator.projection": "embeddings"})
  params = random_params(recipe)
  assert "embeddings" not in params["generator"]
  assert params["generator"]["mlm_head"]["dense"]["kernel"].shape == (16, 32)
  output = _run(recipe, params)
  assert output.features.shape[-1] == 16 and output.transformed.shape[-1] == 32


def test_a_generator_with_its_own_table_needs_no_projection():
  own_table = {"generator.share_embeddings": "none", "generator.projection": "none"}
  recipe = small_recipe({**COCO_LM, **SIZES, **own_table})
  params = random_params(recipe)
  own = params["generator"]
  assert "projection" not in own and own["embeddings"]["token"]["embedding"].shape == (97, 16)
  output = _run(recipe, params)
  assert output.features.shape[-1] == output.transformed.shape[-1] == 16
  # As a masked-LM encoder of that width, which it may be loaded from.
  narrow = {"model.hidden_size": 16, "model.mlp_size": 24}
  alone = small_recipe({**narrow, "objectives.mlm.weight": 1.0})
  expected = jax.eval_shape(alone.init, jax.random.key(0))
  part = {**expected["encoder"], "mlm_head": expected["heads"]["mlm"]}
  assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, part)


# Heads.


def test_heads_read_their_layers_at_the_masked_positions(amos):
  recipe, params = amos
  output = _run(recipe, params)
  slots = jax.eval_shape(recipe.mask, BATCH).corrupted.masking.positions.shape[1]
  assert output.features.shape == output.transformed.shape == (3, 4, slots, 32)
  assert output.biases.shape == (1, 97)
  deeper = small_recipe({**AMOS, "generator.mlm_layers": (2, 3)})
  found = _run(deeper, params)
  np.testing.assert_allclose(found.features, np.asarray(output.features)[1:], atol=1e-6)


def test_each_block_of_layers_is_trained_by_its_own_head_only(amos):
  recipe, params = amos

  def losses(params):
    return jnp.stack(_head_losses(recipe, params, _run(recipe, params)))

  jacobian = jax.jit(jax.jacrev(losses))(params)
  layers = jacobian["generator"]["trunk"]["layers"]["up"]["kernel"]  # [heads, layers, ...]
  reached = np.any(np.asarray(layers) != 0, axis=(2, 3))
  np.testing.assert_array_equal(reached, np.eye(3, dtype=bool))
  # The embeddings of the input are trained by the first block, the shared head and bias table by all.
  position = np.asarray(jacobian["generator"]["embeddings"]["position"]["embedding"])
  np.testing.assert_array_equal(np.any(position != 0, axis=(1, 2)), [True, False, False])
  for leaf in (
    *jax.tree.leaves(jacobian["generator"]["mlm_head"]),
    jacobian["generator"]["trunk"]["relative_position"]["embedding"],
  ):
    assert np.all(np.any(np.asarray(leaf) != 0, axis=tuple(range(1, leaf.ndim))))


def test_without_detached_blocks_every_head_trains_the_layers_below(amos):
  recipe = small_recipe({**AMOS, "generator.detach_blocks": False})

  def losses(params):
    return jnp.stack(_head_losses(recipe, params, _run(recipe, params)))

  layers = jax.jit(jax.jacrev(losses))(amos[1])["generator"]["trunk"]["layers"]["up"]["kernel"]
  reached = np.any(np.asarray(layers) != 0, axis=(2, 3))
  np.testing.assert_array_equal(reached, np.tri(3, dtype=bool))


def test_the_loss_is_the_sum_over_heads_and_metrics_name_the_layers(amos):
  recipe, params = amos
  output = _run(recipe, params)

  @jax.jit
  def of_output(output):
    masking = recipe.mask(BATCH).corrupted.masking
    targets = take_positions(BATCH.ids, masking.positions)
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    arguments = (output, table, targets, masking.weights, recipe.generator)
    made = generator.loss_and_metrics(*arguments, chunk=2)
    return made, _head_losses(recipe, params, output), jnp.sum(masking.weights)

  (loss, metrics), expected, number = of_output(output)
  np.testing.assert_allclose(loss, sum(expected), rtol=1e-5)
  for layer, of_head in zip((1, 2, 3), expected):
    np.testing.assert_allclose(metrics[f"generator_loss_layer_{layer}"][0], of_head, rtol=1e-5)
    assert f"generator_accuracy_layer_{layer}" in metrics
  assert metrics["generator_loss"][1] == number


def test_separate_generators_have_trunks_heads_and_losses_of_their_own():
  recipe = small_recipe({**AMOS, "generator.mlm_layers": (), "generator.separate_layers": (1, 2)})
  params = random_params(recipe)
  members = params["generator"]
  assert [len(members[f"member_{i}"]["trunk"]["layers"]["up"]["kernel"]) for i in range(2)] == [1, 2]

  def losses(params):
    return jnp.stack(_head_losses(recipe, params, _run(recipe, params)))

  jacobian = jax.jit(jax.jacrev(losses))(params)["generator"]
  for i in range(2):
    for leaf in jax.tree.leaves(jacobian[f"member_{i}"]):
      assert not np.any(np.asarray(leaf)[1 - i])
    assert np.any(np.asarray(jacobian[f"member_{i}"]["mlm_head"]["bias"])[i])
  assert _run(recipe, params).biases.shape == (2, 97)


# Dropout and padding.


def test_dropout_needs_keys_and_does_not_depend_on_the_batch_around_a_row():
  recipe = small_recipe(COCO_LM)
  params = random_params(recipe)
  runs = (_run(recipe, params, row_keys=keys).features for keys in (BATCH.row_keys, None))
  whole, plain = map(np.asarray, runs)
  assert np.max(np.abs(whole - plain)) > 0.01
  half = cut(BATCH, 0, 2)
  part = _run(recipe, params, row_keys=half.row_keys, batch=half).features
  np.testing.assert_allclose(part, whole[:, :2], atol=1e-5)  # other matrix shapes, other rounding


def test_zero_dropout_members_ignore_keys(amos):
  recipe, params = amos
  dropped = _run(recipe, params, row_keys=BATCH.row_keys).features
  np.testing.assert_array_equal(dropped, _run(recipe, params).features)


def test_separate_generators_drop_different_things():
  fields = {**COCO_LM, "generator.separate_layers": (1, 1), "generator.sampling_dropout": "train"}
  recipe = small_recipe(fields)
  params = random_params(recipe)
  params["generator"]["member_1"] = params["generator"]["member_0"]
  runs = (_run(recipe, params, row_keys=keys).features for keys in (None, BATCH.row_keys))
  plain, dropped = map(np.asarray, runs)
  np.testing.assert_array_equal(plain[0], plain[1])
  assert np.max(np.abs(dropped[0] - dropped[1])) > 0.01
