"""Losses of tokens (mlm, clm, all_token, rtd) against plain softmaxes and sigmoids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import heads
from pretrain.objectives.tokens import (
  AllTokenLMLoss,
  CorrectiveLMLoss,
  MaskedLMLoss,
  ReplacedTokenDetectionLoss,
  mixture_prediction,
  rtd_metrics,
)
from pretrain.ops.vocab import VocabScores
from tests.pretrain import drawn
from tests.pretrain.objectives import views

TRANSFORM = heads.init_mlm_head(jax.random.key(0), views.ENCODER, output_size=views.D)
BIAS = drawn.normal(1, 97).at[10].add(6.0)  # the token of one replaced position is the most probable one
HEADS = {
  "clm": {"bias": BIAS},
  "rtd": {"kernel": drawn.normal(0, views.D, 1), "bias": jnp.asarray([0.3])},
  "mlm": TRANSFORM | {"bias": BIAS},
}
VIEW = views.view(HEADS)
IS_TOKEN = views.IDS != 1
IS_ORIGINAL = views.IDS == views.INPUT_IDS
RTD, ALL_TOKEN = ReplacedTokenDetectionLoss(weight=50.0, head="linear"), AllTokenLMLoss(weight=1.0)


def _clm(**changes) -> CorrectiveLMLoss:
  fields = {"weight": 1.0, "form": "mixture", "stop_gradient": True, "copy": True}
  return CorrectiveLMLoss(**{**fields, **changes})


def _probabilities():
  """q(original) of the LM head, q of all tokens, and p_copy, at every position."""
  every = np.exp(views.log_probs(VIEW.hidden, VIEW.token_table, HEADS["clm"]["bias"]))
  q = np.take_along_axis(every, views.IDS[..., None], axis=-1)[..., 0]
  logits = np.asarray(heads.apply_rtd_head(HEADS["rtd"], views.ENCODER, VIEW.hidden), np.float64)
  return q, every, 1 / (1 + np.exp(-logits))


def _copy_metrics(where: np.ndarray) -> dict:
  """{name: (hits, weight)} of LM, mixture and copy head, for replaced and original tokens of `where`."""
  _, every, p = _probabilities()
  best = every.argmax(axis=-1)
  kept = p + (1 - p) * np.take_along_axis(every, views.INPUT_IDS[..., None], axis=-1)[..., 0]
  predicted = np.where(kept >= (1 - p) * every.max(axis=-1), views.INPUT_IDS, best)
  hits = {
    "clm_lm_accuracy": best == views.IDS,
    "clm_accuracy": predicted == views.IDS,
    "copy_accuracy": (p >= 0.5) == IS_ORIGINAL,
  }
  groups = {"replaced": where & ~IS_ORIGINAL, "original": where & IS_ORIGINAL}
  return {
    f"{metric}_{group}": (hit[at].sum(), at.sum())
    for metric, hit in hits.items()
    for group, at in groups.items()
  }


def _assert_metrics(found: dict, expected: dict) -> None:
  for name, pair in expected.items():
    np.testing.assert_allclose(found[name], pair, rtol=1e-5, err_msg=name)


# Masked LM.


def test_masked_lm_is_at_masked_positions_or_all_tokens_without_padding():
  transformed = heads.apply_transform(HEADS["mlm"], views.ENCODER, VIEW.hidden)
  log_probs = views.log_probs(transformed, VIEW.token_table, HEADS["mlm"]["bias"])
  costs = -np.take_along_axis(log_probs, views.IDS[..., None], axis=-1)[..., 0]
  hits = log_probs.argmax(axis=-1) == views.IDS
  assert hits[views.SELECTED].any()
  of_masked = {"masked_lm_accuracy": (hits[views.SELECTED].sum(), 3)}
  masked, everywhere = (MaskedLMLoss(weight=1.0, positions=where) for where in ("masked", "all"))
  for objective, name, where, metrics in (
    (masked, "masked_lm_loss", views.SELECTED, of_masked),
    (everywhere, "token_lm_loss", IS_TOKEN, of_masked | {"masked_lm_loss": (costs[views.SELECTED].sum(), 3)}),
  ):
    ((found, term),) = objective(VIEW, views.CONTEXT).items()
    assert found == name and float(objective.totals(VIEW.corrupted)[name]) == where.sum()
    np.testing.assert_allclose(term.loss, costs[where].sum(), rtol=1e-5)
    _assert_metrics(term.metrics, metrics)


# Corrective LM.


def test_corrective_lm_copies_where_the_replacement_is_the_original_or_weighs_or_does_neither():
  q, _, p = (each[views.SELECTED] for each in _probabilities())
  mixture = -np.log(IS_ORIGINAL[views.SELECTED] * p + (1 - p) * q)
  weighted, plain = -(1 - p) * np.log(q), -np.log(q)
  is_replaced = ~IS_ORIGINAL[views.SELECTED]
  replaced = {"clm_cross_entropy_replaced": (plain[is_replaced].sum(), 2)}
  metrics = replaced | _copy_metrics(views.SELECTED)
  assert metrics["clm_lm_accuracy_replaced"] == (1, 2)
  for changes, costs, expected in (
    ({}, mixture, metrics),
    ({"form": "weighted"}, weighted, metrics),
    ({"copy": False}, plain, replaced),
  ):
    objective = _clm(**changes)
    term = objective(VIEW, views.CONTEXT)["clm_loss"]
    np.testing.assert_allclose(term.loss, costs.sum(), rtol=1e-5, err_msg=str(changes))
    assert float(objective.totals(VIEW.corrupted)["clm_loss"]) == 3
    _assert_metrics(term.metrics, expected)
    assert ("clm_accuracy_replaced" in term.metrics) == ("clm_accuracy_replaced" in expected)
    made = objective.init(jax.random.key(0), views.CONTEXT)
    assert set(made) == ({"clm"} if changes == {"copy": False} else {"clm", "rtd"})


def _gradient(objective):
  """Of hidden states, the table and the heads."""

  def loss(hidden, table, heads):
    (term,) = objective(VIEW._replace(hidden=hidden, token_table=table, heads=heads), views.CONTEXT).values()
    return term.loss

  gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
  return jax.device_get(gradient(VIEW.hidden, VIEW.token_table, {n: HEADS[n] for n in ("clm", "rtd")}))


@pytest.mark.parametrize("form", ["mixture", "weighted"])
def test_stop_gradient_keeps_the_copy_head_untouched_but_not_the_states_and_the_table(form):
  for stop_gradient in (True, False):
    hidden, table, of_heads = _gradient(_clm(form=form, stop_gradient=stop_gradient))
    assert all(np.any(x != 0) != stop_gradient for x in of_heads["rtd"].values())
    assert np.any(of_heads["clm"]["bias"] != 0) and np.any(table != 0)
    np.testing.assert_array_equal(np.any(hidden != 0, axis=-1), views.SELECTED)


def test_prediction_keeps_the_input_where_copying_is_more_probable_than_the_best_token():
  # p_copy 0.6 beats the LM's best at (1 - 0.6) * 0.9; p_copy 0.4 does not: 0.6 * 0.9 > 0.4 + 0.6 * 0.05.
  log_probs = jnp.log(jnp.full((1, 2, 2), 0.05))
  scores = VocabScores(log_probs, jnp.asarray([[50, 50]]), jnp.log(jnp.full((1, 2), 0.9)))
  logits = jnp.log(jnp.asarray([[0.6 / 0.4, 0.4 / 0.6]]))
  found = mixture_prediction(scores, logits, jnp.asarray([[7, 7]]))
  np.testing.assert_array_equal(found, [[7, 50]])


# All-token LM.


def test_all_token_lm_is_the_copy_mixture_at_every_token_and_trains_all_but_padding():
  q, _, p = _probabilities()
  costs = -np.log(IS_ORIGINAL * p + (1 - p) * q)
  term = ALL_TOKEN(VIEW, views.CONTEXT)["all_token_loss"]
  np.testing.assert_allclose(term.loss, costs[IS_TOKEN].sum(), rtol=1e-5)
  assert float(ALL_TOKEN.totals(VIEW.corrupted)["all_token_loss"]) == 10
  _assert_metrics(term.metrics, _copy_metrics(IS_TOKEN))
  hidden, _, of_heads = _gradient(ALL_TOKEN)
  assert all(np.any(x != 0) for x in jax.tree.leaves(of_heads))
  np.testing.assert_array_equal(np.any(hidden != 0, axis=-1), IS_TOKEN)


# Detection.


def test_detection_is_the_binary_cross_entropy_of_every_token_specials_included():
  _, _, p = _probabilities()
  costs = np.where(IS_ORIGINAL, -np.log(p), -np.log(1 - p))
  term = RTD(VIEW, views.CONTEXT)["rtd_loss"]
  np.testing.assert_allclose(term.loss, costs[IS_TOKEN].sum(), rtol=1e-5)
  assert float(RTD.totals(VIEW.corrupted)["rtd_loss"]) == 10
  dense = ReplacedTokenDetectionLoss(weight=1.0, head="dense")
  names = [set(each.init(jax.random.key(0), views.CONTEXT)["rtd"]) for each in (RTD, dense)]
  assert names == [{"kernel", "bias"}, {"kernel", "bias", "dense"}]


def test_hits_and_losses_are_split_by_what_the_tokens_are():
  logits = jnp.where(jnp.asarray(IS_ORIGINAL), 1.0, -1.0).at[0, 1].set(2.0).at[0, 3].set(-2.0)
  metrics = rtd_metrics(logits, VIEW.corrupted)
  cost = {z: np.log1p(np.exp(-z)) for z in (-2, 1)}  # of a decision that is right by z
  # Wrong on one of two replaced tokens, and on the only masked token that was guessed right.
  expected = {
    "rtd_accuracy": (8, 10),
    "rtd_accuracy_replaced": (1, 2),
    "rtd_accuracy_original": (7, 8),
    "rtd_accuracy_masked_correct": (0, 1),
    "rtd_accuracy_untouched": (7, 7),
    "rtd_loss_replaced": (cost[-2] + cost[1], 2),
    "rtd_loss_masked_correct": (cost[-2], 1),
    "rtd_loss_untouched": (7 * cost[1], 7),
  }
  assert metrics.keys() == expected.keys()
  _assert_metrics(metrics, expected)
