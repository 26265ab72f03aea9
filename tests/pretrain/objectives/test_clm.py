"""Run: pytest tests/pretrain/objectives/test_clm.py"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.models import heads
from pretrain.objectives.clm import CorrectiveLMLoss, mixture_prediction
from pretrain.ops.vocab.vocab_cross_entropy import VocabScores
from tests.pretrain import drawn
from tests.pretrain.objectives import views

HEADS = {
  "clm": {"bias": drawn.normal(1, 97)},
  "rtd": {"kernel": drawn.normal(0, views.D, 1), "bias": jnp.asarray([0.3])},
}


def _objective(**changes) -> CorrectiveLMLoss:
  return CorrectiveLMLoss(
    **{"weight": 1.0, "form": "mixture", "stop_gradient": True, "copy": True, **changes}
  )


@pytest.fixture(scope="module")
def view():
  return views.view(HEADS)


def _probabilities(view):
  """q(original) and p_copy at the masked positions, in row-major order."""
  hidden = np.asarray(view.hidden)[views.SELECTED]
  log_probs = views.log_probs(hidden, view.token_table, HEADS["clm"]["bias"])
  q = np.exp(np.take_along_axis(log_probs, views.IDS[views.SELECTED][:, None], axis=-1)[:, 0])
  logits = np.asarray(heads.apply_rtd_head(HEADS["rtd"], views.ENCODER, hidden))
  return q, 1 / (1 + np.exp(-logits))


def test_mixture_copies_only_where_the_replacement_is_the_original(view):
  q, p = _probabilities(view)
  is_original = (views.IDS == views.INPUT_IDS)[views.SELECTED]
  expected = -np.log(is_original * p + (1 - p) * q).sum()
  np.testing.assert_allclose(_objective()(view, views.CONTEXT)["clm_loss"].loss, expected, rtol=1e-5)
  assert float(_objective().totals(view.corrupted)["clm_loss"]) == 3


def test_weighted_form_and_no_copy(view):
  q, p = _probabilities(view)
  weighted = _objective(form="weighted")(view, views.CONTEXT)["clm_loss"].loss
  np.testing.assert_allclose(weighted, -((1 - p) * np.log(q)).sum(), rtol=1e-5)
  plain = _objective(copy=False)(view._replace(heads={"clm": HEADS["clm"]}), views.CONTEXT)["clm_loss"]
  np.testing.assert_allclose(plain.loss, -np.log(q).sum(), rtol=1e-5)
  assert "clm_accuracy_replaced" not in plain.metrics


@pytest.mark.parametrize("form", ["mixture", "weighted"])
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_stop_gradient_keeps_the_copy_head_untouched_but_not_the_states_and_the_table(
  view, form, stop_gradient
):
  objective = _objective(form=form, stop_gradient=stop_gradient)

  def loss(hidden, table, heads):
    used = view._replace(hidden=hidden, token_table=table, heads=heads)
    return objective(used, views.CONTEXT)["clm_loss"].loss

  hidden, table, of_heads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(view.hidden, view.token_table, HEADS)
  assert all(np.any(np.asarray(x) != 0) != stop_gradient for x in of_heads["rtd"].values())
  assert np.any(of_heads["clm"]["bias"] != 0) and np.any(table != 0)
  np.testing.assert_array_equal(np.any(np.asarray(hidden) != 0, axis=-1), views.SELECTED)


def test_accuracies_are_split_by_replaced_and_original(view):
  metrics = _objective()(view, views.CONTEXT)["clm_loss"].metrics
  for name in ("clm_lm_accuracy", "clm_accuracy", "copy_accuracy"):
    assert float(metrics[f"{name}_replaced"][1]) == 2
    assert float(metrics[f"{name}_original"][1]) == 1


def test_prediction_keeps_the_input_where_copying_is_more_probable_than_the_best_token():
  # p_copy 0.6 beats the LM's best at (1 - 0.6) * 0.9; p_copy 0.4 does not: 0.6 * 0.9 > 0.4 + 0.6 * 0.05.
  log_probs = jnp.log(jnp.full((1, 2, 2), 0.05))
  scores = VocabScores(log_probs, jnp.asarray([[50, 50]]), jnp.log(jnp.full((1, 2), 0.9)))
  logits = jnp.log(jnp.asarray([[0.6 / 0.4, 0.4 / 0.6]]))
  found = mixture_prediction(scores, logits, jnp.asarray([[7, 7]]))
  np.testing.assert_array_equal(found, [[7, 50]])


def test_the_copy_head_is_the_rtd_head_and_absent_without_copy():
  assert set(_objective().init(jax.random.key(0), views.CONTEXT)) == {"clm", "rtd"}
  assert set(_objective(copy=False).init(jax.random.key(0), views.CONTEXT)) == {"clm"}
