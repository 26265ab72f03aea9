"""Run: pytest tests/pretrain/objectives/test_taco.py"""

import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from pretrain.objectives import contrast
from pretrain.objectives.contrast import TokenAlignmentLoss, alignment_loss_sum, contextual_score_metrics
from pretrain.ops import row_random
from tests.pretrain.objectives import views
from tests.pretrain.one_program import one_program

IS_TOKEN = views.IDS != 1


def _objective(**changes) -> TokenAlignmentLoss:
  fields = {"weight": 1.0, "anchors": "all", "window": 5, "num_negatives": 4, "temperature": 0.07}
  return TokenAlignmentLoss(**{**fields, "group_size": 2, **changes})


@one_program
def _sample(rows, step, lengths, **sizes):
  return contrast.sample_pairs(row_random.step_row_keys(0, step, rows), lengths, **sizes)


def _pairs(lengths, *, rows=None, step=0, **changes):
  sizes = {"length": 12, "window": 5, "num_negatives": 4, "group_size": 4, **changes}
  rows = np.arange(len(lengths)) if rows is None else rows
  return [np.asarray(x) for x in _sample(rows, np.asarray(step), np.asarray(lengths), **sizes)]


# Who is drawn.


def test_inside_a_row_positives_are_uniform_over_the_window_without_the_token_itself():
  for window, half in ((1, 1), (3, 1), (5, 2), (10, 5)):
    positives, _, _ = _pairs([200] * 40, length=200, window=window)
    inner = slice(half, 200 - half)
    offsets = (positives - np.arange(200))[:, inner].ravel()
    values, counts = np.unique(offsets, return_counts=True)
    np.testing.assert_array_equal(values, [d for d in range(-half, half + 1) if d])
    expected = offsets.size / (2 * half)
    assert ((counts - expected) ** 2 / expected).sum() < (2 * half - 1) + 4 * np.sqrt(2 * (2 * half - 1))


def test_positives_that_fall_outside_are_any_other_token_of_the_row():
  positives, _, _ = _pairs([7] * 400)
  first = positives[:, 0]  # half of its draws fall below 0
  assert set(first) == {1, 2, 3, 4, 5, 6}
  assert abs((first > 2).mean() - 0.5 * 4 / 6) < 4 * np.sqrt(0.33 * 0.67 / 400)
  assert np.all(positives[:, :7] != np.arange(7)) and positives[:, :7].max() == 6
  short, _, _ = _pairs([3, 3], length=3, group_size=2)  # narrower than the window
  assert np.all(short != np.arange(3)) and short.max() <= 2 and short.min() >= 0


def test_negatives_come_from_other_rows_of_the_group_and_from_their_tokens():
  lengths = np.asarray([12, 5, 12, 9, 12, 12, 1, 12])
  _, rows, columns = _pairs(lengths, num_negatives=50)
  own = np.arange(8)[:, None, None]
  assert np.all(rows != own) and np.all(rows // 4 == own // 4)
  assert np.all(columns < lengths[rows]) and np.all(columns >= 0)
  counts = np.asarray([(rows[0] == other).sum() for other in (1, 2, 3)])
  assert ((counts - 200) ** 2 / 200).sum() < 2 + 4 * 2
  assert len(np.unique(columns[rows == 2])) == 12
  assert not np.array_equal(rows[0, 0], rows[0, 1])


def test_a_rows_pairs_are_the_same_in_a_batch_of_its_group_alone_or_of_a_part_of_it():
  whole = _pairs([12] * 8)
  for part in (_pairs([12] * 4, rows=np.arange(4, 8)), _pairs([12] * 8, rows=np.arange(6, 8), first=6)):
    number = len(part[0])
    np.testing.assert_array_equal(part[0], whole[0][-number:])
    np.testing.assert_array_equal(part[1], whole[1][-number:] - (4 if number == 4 else 0))
    np.testing.assert_array_equal(part[2], whole[2][-number:])
  assert not np.array_equal(_pairs([12] * 8, step=1)[0], whole[0])


# What they cost.


def _expected_loss(view, anchors: np.ndarray, temperature: float) -> float:
  contextual = np.asarray(view.hidden - view.embedded, np.float64)
  vectors = contextual / np.linalg.norm(contextual, axis=-1, keepdims=True)
  positives, rows, columns = _pairs([6, 4], length=6, group_size=2)
  total = 0.0
  for b, t in np.argwhere(anchors):
    positive = math.exp(vectors[b, t] @ vectors[b, positives[b, t]] / temperature)
    negatives = [vectors[r, c] for r, c in zip(rows[b, t], columns[b, t])]
    others = sum(math.exp(vectors[b, t] @ negative / temperature) for negative in negatives)
    total -= math.log(positive / (positive + others))
  return total


def test_the_loss_contrasts_contextual_parts_at_the_anchors():
  view, chosen = views.view({}), views.SELECTED
  for anchors, at in (("all", IS_TOKEN), ("masked", chosen), ("unmasked", IS_TOKEN & ~chosen)):
    objective = _objective(anchors=anchors)
    found = jax.jit(lambda view, objective=objective: objective(view, views.CONTEXT)["taco_loss"].loss)(view)
    np.testing.assert_allclose(found, _expected_loss(view, at, 0.07), rtol=1e-4)  # cosines / 0.07
    assert float(objective.totals(view.corrupted)["taco_loss"]) == at.sum()


def _drawn_pairs(dtype=np.float32):
  """Vectors of 4 rows of 7 tokens, vectors to draw from, and pairs and weights of every position."""
  normal = np.random.default_rng(0).normal(size=(2, 4, 7, 16))
  vectors, others = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
  pairs = _pairs([7, 7, 5, 7], length=7, num_negatives=3)
  weights = np.arange(28, dtype=np.float32).reshape(4, 7) / 10
  options = {"is_valid": jnp.asarray(pairs[2] != 1), "weights": jnp.asarray(weights), "temperature": 0.5}
  return jnp.asarray(vectors, jnp.float32), jnp.asarray(others, dtype), [*map(jnp.asarray, pairs)], options


def _plain_loss(vectors, others, positives, rows, columns, *, is_valid, weights, temperature):
  partners = jax.lax.stop_gradient(jnp.take_along_axis(vectors, positives[..., None], axis=1))
  positive = jnp.exp(jnp.sum(vectors * partners, axis=-1) / temperature)
  negative = jnp.exp(jnp.sum(vectors[:, :, None] * others[rows, columns], axis=-1) / temperature)
  return -jnp.sum(weights * jnp.log(positive / (positive + jnp.sum(negative * is_valid, axis=-1))))


def test_few_positions_at_a_time_give_the_plain_loss_and_gradient_and_its_multiple(monkeypatch):
  vectors, others, pairs, options = _drawn_pairs()
  wanted, wanted_gradient = jax.value_and_grad(lambda x: _plain_loss(x, others, *pairs, **options))(vectors)
  for positions, negatives in ((100, 1 << 15), (3, 1 << 15), (8, 40), (8, 1)):
    monkeypatch.setattr(contrast, "MOST_POSITIONS", positions)
    monkeypatch.setattr(contrast, "MOST_NEGATIVES", negatives)

    def loss(x, times):
      return times * alignment_loss_sum(x, others, *pairs, **options)

    value, gradient = jax.jit(jax.value_and_grad(loss))(vectors, 3.0)
    np.testing.assert_allclose(value, 3 * wanted, rtol=1e-6)
    np.testing.assert_allclose(gradient, 3 * wanted_gradient, atol=3e-6)
    assert float(jax.jit(loss)(vectors, 3.0)) == float(value)


def test_a_fraction_of_the_negatives_exists_at_once():
  batch, length, number, width = 4, 128, 50, 64
  ints = jax.ShapeDtypeStruct((batch, length, number), jnp.int32)
  vectors = jax.ShapeDtypeStruct((batch, length, width), jnp.float32)

  def loss(vectors, others, rows, columns):
    flat = rows[..., 0]
    options = {"is_valid": rows > 0, "weights": flat.astype(jnp.float32), "temperature": 0.07}
    return alignment_loss_sum(vectors, others, flat, rows, columns, **options)

  compiled = jax.jit(jax.value_and_grad(loss)).lower(vectors, vectors, ints, ints).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < batch * length * number * width * 4 / 4


def test_products_with_negatives_of_bfloat16_lose_their_rounding_and_no_more():
  vectors, exact, pairs, options = _drawn_pairs()
  _, others, _, _ = _drawn_pairs(jnp.bfloat16)

  def loss_of(others):
    return jax.value_and_grad(lambda x: alignment_loss_sum(x, others, *pairs, **options))(vectors)

  for rounded, wanted in zip(jax.tree.leaves(loss_of(others)), jax.tree.leaves(loss_of(exact)), strict=True):
    assert rounded.dtype == jnp.float32 and not np.array_equal(rounded, wanted)
    np.testing.assert_allclose(rounded, wanted, atol=2**-8 * float(jnp.max(jnp.abs(wanted))))


def test_gradient_reaches_the_anchors_hidden_and_embedded_states_with_opposite_signs_only():
  view, objective = views.view({}), _objective(anchors="masked")

  def loss(hidden, embedded):
    return objective(view._replace(hidden=hidden, embedded=embedded), views.CONTEXT)["taco_loss"].loss

  hidden, embedded = jax.jit(jax.grad(loss, argnums=(0, 1)))(view.hidden, view.embedded)
  np.testing.assert_array_equal(np.any(np.asarray(hidden) != 0, axis=-1), views.SELECTED)
  np.testing.assert_array_equal(embedded, -hidden)


def test_a_row_of_one_token_is_no_anchor_and_rows_of_padding_give_no_negatives():
  view = views.view({})
  ids = jnp.asarray(views.IDS).at[1].set(1).at[1, 0].set(0)
  lonely = view.corrupted._replace(ids=ids, token_mask=ids != 1)
  assert float(_objective().totals(lonely)["taco_loss"]) == 6
  empty = view.corrupted._replace(ids=ids.at[1].set(1), token_mask=(ids != 1).at[1].set(False))
  term = _objective()(view._replace(corrupted=empty), views.CONTEXT)["taco_loss"]
  assert float(term.loss) == 0.0  # only the positive is left: nothing to tell apart
  assert [float(term.metrics[f"taco_cosine_{name}"][1]) for name in ("positive", "negative")] == [6.0, 0.0]


def test_contextual_scores_are_mean_cosines_of_hidden_states():
  hidden = jnp.asarray([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  others = jnp.asarray([[[1.0, 0.0], [3.0, 4.0]], [[0.0, 1.0], [4.0, 3.0]]])
  positives, rows = jnp.asarray([[1, 0], [1, 1]]), jnp.asarray([[1, 1], [0, 0]])
  columns, weights = jnp.asarray([[0, 1], [0, 1]]), jnp.ones((2, 2))
  has_rows = jnp.asarray([[True, True], [False, True]])
  metrics = contextual_score_metrics(hidden, others, positives, rows, columns, weights, has_rows=has_rows)
  # The last token is its own neighbour, so it has none; the first of its row has an empty row beside it.
  np.testing.assert_allclose(metrics["taco_cosine_positive"], (3.0, 3.0), rtol=1e-6)
  np.testing.assert_allclose(metrics["taco_cosine_negative"], (0.0 + 0.8 + 0.8, 3.0), rtol=1e-6)
