"""Run: pytest tests/pretrain/test_segments.py. Rows of several texts give what each text gives alone."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain import losses
from pretrain.objectives import contrast
from pretrain.ops import row_random
from pretrain.recipe import Batch, Recipe
from tests.pretrain.small_recipe import (
  AMOS,
  COCO_LM,
  LENGTH,
  MODERN,
  TOKENS,
  VOCAB_SIZE,
  random_params,
  small_recipe,
)

TEXTS = ([7, 5], [4, 6, 5], [16])  # tokens of the texts in each packed row; the first row has padding
ULTRA = MODERN | {"model.norm": "rmsnorm", "model.embedding_norm": False, "model.activation": "silu"}
PRE = {"model.norm_placement": "pre", "model.relative_position": "none", "model.embedding_norm": False}
RTD = COCO_LM | {"objectives.clm.weight": 0.0, "objectives.scl.weight": 0.0}
KINDS = {
  "mlm": {"objectives.mlm.weight": 1.0, "model.global_layers": (1,)} | ULTRA,
  "coco_lm": COCO_LM | {"objectives.scl.weight": 0.0},
  "all_token": RTD | {"objectives.all_token.weight": 1.0} | MODERN,
  "amos": AMOS | MODERN,
  "mae": {"objectives.mae.weight": 1.0, "objectives.mae.decoder_layers": 1} | PRE,
}


def _batches(slots: int) -> tuple[Batch, Batch]:
  """The texts packed, and each in a row of its own, with the same masks, proposals, noise and crops."""
  random = np.random.default_rng(0)
  rows = {"packed": [], "apart": []}
  for lengths in TEXTS:
    together = []
    for length in lengths:
      ids = np.concatenate([[TOKENS.cls], random.integers(5, VOCAB_SIZE, length - 2), [TOKENS.sep]])
      size = int(0.9 * length)
      start = int(ids.sum()) % (length - size + 1)
      crop = np.concatenate([[TOKENS.cls], ids[start : start + size], [TOKENS.pad] * (length - size - 1)])
      text = np.stack([ids, random.random(length) < 0.3, random.integers(5, VOCAB_SIZE, length), crop])
      noise = random.gumbel(size=(length, VOCAB_SIZE)).astype(np.float32)
      rows["apart"].append([(text, noise)])
      together.append((text, noise))
    rows["packed"].append(together)

  def batch(rows: list) -> Batch:
    ids = np.full((len(rows), LENGTH), TOKENS.pad, np.int32)
    chosen = np.zeros((len(rows), LENGTH), bool)
    sampled = np.zeros((len(rows), slots), np.int32)
    noise = np.zeros((len(rows), slots, VOCAB_SIZE), np.float32)
    crops = ids.copy()
    for number, texts in enumerate(rows):
      text = np.concatenate([text for text, _ in texts], axis=1)
      of_text = np.concatenate([noise for _, noise in texts])
      ids[number, : text.shape[1]], chosen[number, : text.shape[1]] = text[0], text[1] > 0
      crops[number, : text.shape[1]] = text[3]
      at = np.flatnonzero(text[1])
      assert len(at) <= slots
      sampled[number, : len(at)], noise[number, : len(at)] = text[2, at], of_text[at]
    keys = row_random.step_row_keys(0, 0, np.arange(len(rows)))
    given = {"selected": chosen, "sampled": sampled, "noise": noise, "crop_ids": crops}
    return Batch(jnp.asarray(ids), keys, jnp.zeros(len(rows)), jax.tree.map(jnp.asarray, given))

  return batch(rows["packed"]), batch(rows["apart"])


@pytest.mark.parametrize("kind", list(KINDS))
def test_losses_and_gradients_of_packed_rows_are_those_of_their_texts(kind):
  fields = KINDS[kind] | {"corruption.mask_rate": 0.5}
  packed, apart = small_recipe(fields | {"data.packing": "segments"}), small_recipe(fields)
  batches = _batches(LENGTH // 2)
  _assert_same(random_params(apart), *(_loss_of(*pair) for pair in zip((packed, apart), batches)))


def _loss_of(recipe: Recipe, batch: Batch) -> Callable:
  def loss(params: dict) -> jax.Array:
    masked = recipe.mask(batch)
    return recipe.loss_fn(params, masked, recipe.totals(masked), train=False)[0]

  return loss


def _assert_same(params: dict, of_packed: Callable, of_texts: Callable) -> None:
  """Two losses, functions of the parameters, have the same value and gradients."""
  (loss, gradients), (expected, others) = (
    jax.jit(jax.value_and_grad(loss))(params) for loss in (of_packed, of_texts)
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  for (path, one), other in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(others)):
    atol = 2e-5 * max(float(np.max(np.abs(other))), 0.1)
    np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


def test_segments_are_contrasted_as_texts_of_their_own_but_not_with_those_of_their_row(monkeypatch):
  monkeypatch.setattr(contrast, "SHORTEST", 5)
  slots = 2  # of the three texts of the second row
  fields = {
    "objectives.scl.weight": 1.0,
    "objectives.scl.group_size": 0,
    "corruption.mask_rate": 0.5,
  } | MODERN
  packed = small_recipe(fields | {"data.packing": "segments", "objectives.scl.max_segments": slots})
  apart, (in_rows, alone) = small_recipe(fields), _batches(LENGTH // 2)
  rows = np.concatenate([[number] * len(texts) for number, texts in enumerate(TEXTS)] * 2)
  used = [length >= 5 and place < slots for texts in TEXTS for place, length in enumerate(texts)]
  used = np.asarray(used * 2)
  partner = np.roll(np.arange(len(rows)), len(rows) // 2)

  def of_texts(params: dict) -> jax.Array:
    view, _ = apart.view(params, apart.mask(alone), train=False)
    vectors = losses.unit_vectors(jnp.concatenate([view.hidden[:, 0], view.crop_hidden]))
    total = 0.0
    for anchor in np.flatnonzero(used):
      others = [partner[anchor], *np.flatnonzero(used & (rows != rows[anchor]))]
      scores = vectors[np.asarray(others)] @ vectors[anchor]
      total += jax.nn.logsumexp(scores) - scores[0]
    return total / used.sum()

  _assert_same(random_params(apart), _loss_of(packed, in_rows), of_texts)
  masked = packed.mask(in_rows)
  loss = jax.jit(lambda params: packed.loss_fn(params, masked, packed.totals(masked), train=False))
  metrics = jax.device_get(loss(random_params(apart))[1])
  assert metrics["scl_segments_dropped"] == (1.0, 6.0) and metrics["scl_accuracy"][1] == used.sum()


def _masked(recipe: Recipe, row: list[int]):
  """Four masked rows, of which the first begins with these tokens and the rest is padding."""
  ids = np.full((4, LENGTH), TOKENS.pad, np.int32)
  ids[0, : len(row)] = row
  return recipe.mask(Batch(jnp.asarray(ids), row_random.step_row_keys(0, 0, np.arange(4)), jnp.zeros(4)))


def test_texts_too_short_for_their_loss_are_no_anchors():
  fields = {"objectives.scl.weight": 1.0, "objectives.scl.max_segments": 3, "objectives.taco.weight": 1.0}
  recipe = small_recipe(fields | {"data.packing": "segments"})
  of_eight_and_seven = _masked(recipe, [TOKENS.cls, *[9] * 7, TOKENS.cls, *[9] * 6])
  assert float(recipe.totals(of_eight_and_seven)["scl_loss"]) == 2
  of_three_and_one = _masked(recipe, [TOKENS.cls, 9, TOKENS.sep, TOKENS.cls])
  weights = recipe.objectives["taco"].anchor_weights(of_three_and_one.corrupted)
  np.testing.assert_array_equal(weights[0], [1] * 3 + [0] * (LENGTH - 3))


def test_a_positive_of_taco_is_another_token_of_the_same_text():
  numbers = np.asarray([[1] * 5 + [2] * 2 + [3] * 1 + [4] * 3 + [0]] * 300)
  keys = row_random.step_row_keys(0, 0, np.arange(300))
  sizes = {"length": 12, "window": 5, "num_negatives": 2, "group_size": 4}
  positives, _, _ = jax.jit(
    lambda keys, numbers: contrast.sample_pairs(keys, jnp.full(300, 11), **sizes, segment_ids=numbers)
  )(keys, numbers)
  same = np.take_along_axis(numbers, np.asarray(positives), axis=1) == numbers
  assert np.all(same[:, :11])
  for start, end in ((0, 5), (5, 7), (8, 11)):
    others = [set(np.unique(positives[:, at])) for at in range(start, end)]
    assert others == [set(range(start, end)) - {at} for at in range(start, end)]
