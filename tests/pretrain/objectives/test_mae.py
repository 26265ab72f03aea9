"""Run: pytest tests/pretrain/objectives/test_mae.py. What the encoder does not see, and the decoder does.

The numbers of the official code are in the golden files n_maelm.
"""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import backbones
from pretrain.models import encoder as encoder_model
from pretrain.ops.attention import attention
from pretrain.recipe import Batch
from tests.pretrain.recipe_cases import FAST_COMPILE
from tests.pretrain.small_recipe import LENGTH, TOKENS, random_params, small_batch, small_ids, small_recipe

MAE = {"objectives.mae.weight": 1.0, "objectives.mae.decoder_layers": 1, "corruption.mask_rate": 0.5}
IDS = np.asarray([[0, 10, 11, 12, 2, 1], [0, 20, 21, 22, 23, 2]], np.int32)
IS_TOKEN = np.not_equal(IDS, TOKENS.pad)
CHOSEN = np.asarray([[0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]], bool)  # of row 0 stay 0, 1, 3 and 4


@functools.cache
def _recipe(**fields):
  return small_recipe(MAE | {name.replace("__", "."): value for name, value in fields.items()})


def _batch(ids: np.ndarray = IDS, chosen: np.ndarray = CHOSEN) -> Batch:
  keys = small_batch(len(ids)).row_keys
  return Batch(jnp.asarray(ids), keys, jnp.zeros(len(ids)), {"selected": jnp.asarray(chosen)})


@functools.cache
def _compiled(**fields):
  recipe = _recipe(**fields)

  def states_and_loss(params, batch):
    masked = recipe.mask(batch)
    loss, metrics = recipe.loss_fn(params, masked, recipe.totals(masked), train=False)
    return recipe.view(params, masked, train=False)[0].hidden, loss, metrics

  return jax.jit(states_and_loss, compiler_options=FAST_COMPILE)


MODERN = {f"model__{name}": value for name, value in backbones.MODERN.items()} | {
  "model__window": 4,  # 2 tokens to both sides
  "model__num_layers": 4,
  "objectives__mae__decoder_layers": 2,  # a global and a local layer
}


def _run(ids=IDS, chosen=CHOSEN, **fields):
  """States, loss and metrics without dropout, in numpy."""
  return jax.device_get(_compiled(**fields)(random_params(_recipe(**fields)), _batch(ids, chosen)))


@pytest.mark.parametrize("fields", [{}, MODERN], ids=["post", "modern"])
def test_the_token_under_a_mask_changes_no_state_and_is_the_target_alone(fields):
  other = IDS.copy()
  other[CHOSEN] = [30, 31]
  (states, loss, metrics), (others, another, _) = (_run(ids, **fields) for ids in (IDS, other))
  kept = (IS_TOKEN) & ~CHOSEN
  np.testing.assert_array_equal(states[kept], others[kept])
  assert loss != another
  assert metrics["mae_loss"][1] == metrics["mae_accuracy"][1] == 2
  assert loss == pytest.approx(metrics["mae_loss"][0] / 2)


def test_the_encoder_reads_the_kept_tokens_at_their_own_positions():
  recipe = _recipe(model__relative_position="none")
  params, (states, *_) = random_params(recipe), _run(model__relative_position="none")
  places = np.asarray([[0, 1, 3, 4]])
  of_encoder, mask = params["encoder"], jnp.ones((1, 4), bool)
  embeddings = {name: leaf for name, leaf in of_encoder["embeddings"].items() if name != "token"}
  vectors = of_encoder["embeddings"]["token"]["embedding"][IDS[:1][:, places[0]]]
  embedded = encoder_model.Embeddings(recipe.encoder).apply(
    {"params": embeddings}, vectors, mask, None, jnp.asarray(places)
  )
  alone = encoder_model.run_trunk(of_encoder["trunk"], recipe.encoder, embedded, mask, None).last
  np.testing.assert_allclose(states[0, places[0]], alone[0], atol=1e-5)


@pytest.mark.parametrize("fields", [{}, MODERN], ids=["post", "modern"])
def test_rows_without_masks_have_the_states_of_the_plain_encoder(fields):
  recipe, nothing = _recipe(**fields), np.zeros_like(CHOSEN)
  encoder, ids = random_params(recipe)["encoder"], jnp.asarray(IDS)
  states, loss, _ = _run(chosen=nothing, **fields)
  mask = ids != TOKENS.pad
  plain = encoder_model.encode(encoder, recipe.encoder, ids, mask, pad_id=TOKENS.pad)[1].last
  np.testing.assert_allclose(states, plain, atol=1e-5)
  assert loss == 0.0
  all_masked, loss, _ = _run(chosen=IS_TOKEN, **fields)
  assert np.all(np.isfinite(all_masked)) and np.isfinite(loss) and loss > 0


def _gradient(recipe, params, batch):
  def loss(params):
    masked = recipe.mask(batch)
    return recipe.loss_fn(params, masked, recipe.totals(masked), train=False)[0]

  return jax.device_get(jax.jit(jax.grad(loss), compiler_options=FAST_COMPILE)(params))


@pytest.mark.parametrize("positions", ["own", "shared"])
def test_gradients_reach_the_row_of_the_mask_and_no_position_that_was_left_out(positions):
  recipe = _recipe(objectives__mae__decoder_positions=positions)
  params = random_params(recipe)
  # [MASK] has no share of the output softmax: its row gets what the decoder reads, and nothing else.
  head = params["heads"]["mae"]["mlm_head"]
  head["bias"] = head["bias"].at[TOKENS.mask].set(-1e4)
  gradient = _gradient(recipe, params, _batch())
  table, places = (gradient["encoder"]["embeddings"][name]["embedding"] for name in ("token", "position"))
  assert np.abs(table[TOKENS.mask]).max() > 1e-4
  assert ("position" in params["heads"]["mae"]["embeddings"]) == (positions == "own")
  assert np.any(places[2]) == (positions == "shared")  # masked in both rows
  assert np.all(np.any(places[[0, 1, 3, 4]], axis=1)) and not np.any(places[6:])
  if positions == "own":
    own = gradient["heads"]["mae"]["embeddings"]["position"]["embedding"]
    assert np.all(np.any(own[:6], axis=1)) and not np.any(own[6:])


def test_only_a_decoder_with_distances_has_a_table_of_them():
  plain, relative = (
    random_params(_recipe(objectives__mae__decoder_relative_position=value))["heads"]["mae"]["trunk"]
    for value in (False, True)
  )
  assert set(plain) == {"layers"} and set(relative) == {"layers", "relative_position"}


def test_the_decoder_of_a_modern_encoder_has_its_layers_and_rotary_positions():
  params = random_params(_recipe(**MODERN))
  decoder, encoder = params["heads"]["mae"], params["encoder"]
  assert set(decoder["embeddings"]) == {"norm"}
  shapes = [jax.tree.map(lambda leaf: leaf.shape[1:], part["trunk"]["layers"]) for part in (decoder, encoder)]
  assert shapes[0] == shapes[1]
  # Two masked tokens of a row read the same vectors: only their positions tell them apart.
  chosen = np.asarray([[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], bool)
  recipe, batch = _recipe(**MODERN), _batch(chosen=chosen)
  view, _ = recipe.view(params, recipe.mask(batch), train=False)
  decoded = recipe.objectives["mae"].decode(view, recipe.context).last
  assert not np.allclose(decoded[0, 2], decoded[0, 3], atol=1e-3)


def test_the_decoder_has_dropout_only_where_it_is_asked_for():
  ids = jnp.asarray(small_ids(4))

  def decoded(recipe, keys):
    masked = recipe.mask(small_batch()._replace(ids=ids))
    params = random_params(recipe)
    view, _ = recipe.view(params, masked, train=True)
    assert view.dropout_keys is not None
    view = view._replace(hidden=jnp.ones((4, LENGTH, 32)), dropout_keys=keys)
    return np.asarray(recipe.objectives["mae"].decode(view, recipe.context).last)

  zero, encoder = _recipe(), _recipe(objectives__mae__decoder_dropout="encoder")
  keys = small_batch().row_keys
  np.testing.assert_array_equal(decoded(zero, keys), decoded(zero, None))
  dropped = decoded(encoder, keys)
  np.testing.assert_array_equal(decoded(encoder, keys), dropped)
  assert not np.allclose(dropped, decoded(encoder, None), atol=1e-2)


def test_the_encoder_asks_for_an_attention_that_hides_keys_inside_a_row():
  recipe, choose, asked = _recipe(), attention.choose, []

  def noted(*arguments, **options):
    asked.append(options["is_masked"])
    return choose(*arguments, **options)

  with mock.patch.object(attention, "choose", noted):
    shapes = jax.eval_shape(recipe.init, jax.random.key(0))
    asked.clear()
    jax.eval_shape(functools.partial(recipe.view, train=False), shapes, recipe.mask(_batch()))
  assert asked == [True]


def test_contrast_reads_the_same_states():
  recipe = _recipe(objectives__scl__weight=1.0, corruption__mask_special="sep_only")
  batch = small_batch()
  masked = recipe.mask(batch)
  _, metrics = recipe.loss_fn(random_params(recipe), masked, recipe.totals(masked), train=True)
  assert {"mae_loss", "scl_loss"} <= set(metrics) and np.isfinite(metrics["scl_loss"][0])
