"""Run: pytest tests/pretrain/objectives/test_all_token.py"""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import heads
from pretrain.objectives.all_token import AllTokenLMLoss
from tests.pretrain import drawn
from tests.pretrain.objectives import views

OBJECTIVE = AllTokenLMLoss(weight=1.0)
HEADS = {
  "clm": {"bias": drawn.normal(1, 97)},
  "rtd": {"kernel": drawn.normal(0, views.D, 1), "bias": jnp.asarray([0.3])},
}


def test_the_loss_is_the_copy_mixture_at_every_token():
  view = views.view(HEADS)
  log_probs = views.log_probs(view.hidden, view.token_table, HEADS["clm"]["bias"])
  q = np.exp(np.take_along_axis(log_probs, views.IDS[..., None], axis=-1)[..., 0])
  p = 1 / (1 + np.exp(-np.asarray(heads.apply_rtd_head(HEADS["rtd"], views.ENCODER, view.hidden))))
  costs = -np.log((views.IDS == views.INPUT_IDS) * p + (1 - p) * q)
  term = OBJECTIVE(view, views.CONTEXT)["all_token_loss"]
  is_token = views.IDS != 1
  np.testing.assert_allclose(term.loss, costs[is_token].sum(), rtol=1e-5)
  assert float(OBJECTIVE.totals(view.corrupted)["all_token_loss"]) == 10
  assert float(term.metrics["copy_accuracy_replaced"][1]) == 2
  assert float(term.metrics["copy_accuracy_original"][1]) == 8


def test_the_likelihood_trains_the_copy_head_the_bias_and_every_token_but_padding():
  view = views.view(HEADS)

  def loss(hidden, heads):
    return OBJECTIVE(view._replace(hidden=hidden, heads=heads), views.CONTEXT)["all_token_loss"].loss

  hidden, of_heads = jax.jit(jax.grad(loss, argnums=(0, 1)))(view.hidden, HEADS)
  assert all(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(of_heads))
  np.testing.assert_array_equal(np.any(np.asarray(hidden) != 0, axis=-1), views.IDS != 1)
