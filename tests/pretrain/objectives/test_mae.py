"""Run: pytest tests/pretrain/objectives/test_mae.py. What the encoder does not see, and the decoder does.

The numbers of the official code are in the golden files n_maelm.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import backbones
from pretrain.models import encoder as encoder_model
from pretrain.recipe import Batch, Recipe
from tests.pretrain.small_recipe import LENGTH, TOKENS, random_params, small_batch, small_ids, small_recipe

MAE = {"objectives.mae.weight": 1.0, "objectives.mae.decoder_layers": 1, "corruption.mask_rate": 0.5}
BACKBONES = {
  "post": {"model.relative_position": "none"},
  "modern": {f"model.{name}": value for name, value in backbones.MODERN.items()}
  | {
    "model.window": 4,  # 2 tokens to both sides
    "model.num_layers": 4,
    "objectives.mae.decoder_layers": 2,  # a global and a local layer
  },
}
IDS = np.asarray([[0, 10, 11, 12, 2, 1], [0, 20, 21, 22, 23, 2]], np.int32)
IS_TOKEN = np.not_equal(IDS, TOKENS.pad)
CHOSEN = np.asarray([[0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]], bool)  # of row 0 stay 0, 1, 3 and 4


@functools.cache
def _recipe(backbone: str) -> Recipe:
  return small_recipe(MAE | BACKBONES[backbone])


def _batch(ids: np.ndarray = IDS, chosen: np.ndarray = CHOSEN) -> Batch:
  keys = small_batch(len(ids)).row_keys
  return Batch(jnp.asarray(ids), keys, jnp.zeros(len(ids)), {"selected": jnp.asarray(chosen)})


@functools.cache
def _compiled(backbone: str):
  recipe = _recipe(backbone)

  def states_and_loss(params, batch):
    masked = recipe.mask(batch)
    loss, metrics = recipe.loss_fn(params, masked, recipe.totals(masked), train=False)
    return recipe.view(params, masked, train=False)[0].hidden, loss, metrics

  return jax.jit(states_and_loss)


def _run(backbone: str, ids=IDS, chosen=CHOSEN):
  """States, loss and metrics without dropout, in numpy."""
  return jax.device_get(_compiled(backbone)(random_params(_recipe(backbone)), _batch(ids, chosen)))


@pytest.mark.parametrize("backbone", list(BACKBONES))
def test_the_token_under_a_mask_changes_no_state_and_is_the_target_alone(backbone):
  other = np.where(CHOSEN, [[30], [31]], IDS)
  (states, loss, metrics), (others, another, _) = (_run(backbone, ids) for ids in (IDS, other))
  kept = IS_TOKEN & ~CHOSEN
  np.testing.assert_array_equal(states[kept], others[kept])
  assert loss != another
  assert metrics["mae_loss"][1] == metrics["mae_accuracy"][1] == 2
  assert loss == pytest.approx(metrics["mae_loss"][0] / 2)
  # Rows without masks have the states of the plain encoder.
  encoder, ids, config = (
    random_params(_recipe(backbone))["encoder"],
    jnp.asarray(IDS),
    _recipe(backbone).encoder,
  )
  states, loss, _ = _run(backbone, chosen=np.zeros_like(CHOSEN))
  plain = encoder_model.encode(encoder, config, ids, ids != TOKENS.pad, pad_id=TOKENS.pad)[1].last
  np.testing.assert_allclose(states, plain, atol=1e-5)
  assert loss == 0.0
  all_masked, loss, _ = _run(backbone, chosen=IS_TOKEN)
  assert np.all(np.isfinite(all_masked)) and np.isfinite(loss) and loss > 0


def test_the_encoder_reads_the_kept_tokens_at_their_own_positions():
  recipe = _recipe("post")
  params, (states, *_) = random_params(recipe), _run("post")
  places = np.asarray([[0, 1, 3, 4]])
  of_encoder, mask = params["encoder"], jnp.ones((1, 4), bool)
  embeddings = {name: leaf for name, leaf in of_encoder["embeddings"].items() if name != "token"}
  vectors = of_encoder["embeddings"]["token"]["embedding"][IDS[:1][:, places[0]]]
  embedded = encoder_model.Embeddings(recipe.encoder).apply(
    {"params": embeddings}, vectors, mask, None, jnp.asarray(places)
  )
  alone = encoder_model.run_trunk(of_encoder["trunk"], recipe.encoder, embedded, mask, None).last
  np.testing.assert_allclose(states[0, places[0]], alone[0], atol=1e-5)


@pytest.mark.parametrize("positions", ["own", "shared"])
def test_gradients_reach_the_row_of_the_mask_and_no_position_that_was_left_out(positions):
  recipe = small_recipe(MAE | {"objectives.mae.decoder_positions": positions})
  params, masked = random_params(recipe), recipe.mask(_batch())
  # [MASK] has no share of the output softmax: its row gets what the decoder reads, and nothing else.
  head = params["heads"]["mae"]["mlm_head"]
  head["bias"] = head["bias"].at[TOKENS.mask].set(-1e4)
  loss = lambda params: recipe.loss_fn(params, masked, recipe.totals(masked), train=False)[0]  # noqa: E731
  gradient = jax.device_get(jax.jit(jax.grad(loss))(params))
  table, places = (gradient["encoder"]["embeddings"][name]["embedding"] for name in ("token", "position"))
  assert np.abs(table[TOKENS.mask]).max() > 1e-4
  assert ("position" in params["heads"]["mae"]["embeddings"]) == (positions == "own")
  assert np.any(places[2]) == (positions == "shared")  # masked in both rows
  assert np.all(np.any(places[[0, 1, 3, 4]], axis=1)) and not np.any(places[6:])
  if positions == "own":
    own = gradient["heads"]["mae"]["embeddings"]["position"]["embedding"]
    assert np.all(np.any(own[:6], axis=1)) and not np.any(own[6:])


def test_the_decoder_has_distances_if_asked_for_and_the_layers_and_positions_of_a_modern_encoder():
  for value, names in ((False, {"layers"}), (True, {"layers", "relative_position"})):
    fields = {"objectives.mae.decoder_relative_position": value, "model.num_segments": 2}
    decoder = jax.eval_shape(small_recipe(MAE | fields).init, jax.random.key(0))["heads"]["mae"]
    assert set(decoder["trunk"]) == names and set(decoder["embeddings"]) == {"norm", "position"}
  recipe = _recipe("modern")
  params = random_params(recipe)
  decoder, encoder = params["heads"]["mae"], params["encoder"]
  assert set(decoder["embeddings"]) == {"norm"}
  shapes = [jax.tree.map(lambda leaf: leaf.shape[1:], part["trunk"]["layers"]) for part in (decoder, encoder)]
  assert shapes[0] == shapes[1]
  # Two masked tokens of a row read the same vectors: only their positions tell them apart.
  chosen = np.asarray([[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], bool)
  decoded = jax.jit(functools.partial(_decoded, recipe))(params, _batch(chosen=chosen))
  assert not np.allclose(decoded[0, 2], decoded[0, 3], atol=1e-3)


def _decoded(recipe: Recipe, params: dict, batch: Batch, hidden=None, keys=None) -> jax.Array:
  view, _ = recipe.view(params, recipe.mask(batch), train=False)
  view = view._replace(hidden=view.hidden if hidden is None else hidden, dropout_keys=keys)
  return recipe.objectives["mae"].decode(view, recipe.context).last


def test_the_decoder_has_dropout_only_where_it_is_asked_for():
  batch = small_batch()._replace(ids=jnp.asarray(small_ids(4)))
  for dropout in ("zero", "encoder"):
    recipe = small_recipe(MAE | {"objectives.mae.decoder_dropout": dropout})
    decode = jax.jit(functools.partial(_decoded, recipe, random_params(recipe)))
    given = batch, jnp.ones((4, LENGTH, 32))
    plain, dropped, again = decode(*given), decode(*given, batch.row_keys), decode(*given, batch.row_keys)
    np.testing.assert_array_equal(dropped, again)
    if dropout == "zero":
      np.testing.assert_allclose(dropped, plain, rtol=0, atol=1e-6)
    else:
      assert not np.allclose(dropped, plain, atol=1e-2)
