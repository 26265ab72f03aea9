"""Run: pytest tests/pretrain/objectives/test_rtd.py"""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import heads
from pretrain.objectives.rtd import ReplacedTokenDetectionLoss, rtd_metrics
from tests.pretrain import drawn
from tests.pretrain.objectives import views

OBJECTIVE = ReplacedTokenDetectionLoss(weight=50.0, head="linear")
IS_TOKEN = views.IDS != 1
IS_ORIGINAL = views.IDS == views.INPUT_IDS


def test_the_loss_is_the_binary_cross_entropy_of_every_token_specials_included():
  head = {"kernel": drawn.normal(0, views.D, 1), "bias": jnp.asarray([0.3])}
  view = views.view({"rtd": head})
  logits = np.asarray(heads.apply_rtd_head(head, views.ENCODER, view.hidden), np.float64)
  p = 1 / (1 + np.exp(-logits))
  costs = np.where(IS_ORIGINAL, -np.log(p), -np.log(1 - p))
  found = OBJECTIVE(view, views.CONTEXT)["rtd_loss"].loss
  np.testing.assert_allclose(found, costs[IS_TOKEN].sum(), rtol=1e-5)
  assert float(OBJECTIVE.totals(view.corrupted)["rtd_loss"]) == 10


def test_hit_rates_are_split_by_what_the_tokens_are():
  corrupted = views.view({}).corrupted
  logits = jnp.where(jnp.asarray(IS_ORIGINAL), 1.0, -1.0).at[0, 1].set(2.0).at[0, 3].set(-2.0)
  metrics = rtd_metrics(logits, corrupted)
  # Wrong on one of two replaced tokens, and on the only masked token that was guessed right.
  assert views.rate(metrics["rtd_accuracy"]) == 8 / 10
  assert views.rate(metrics["rtd_accuracy_replaced"]) == 1 / 2
  assert views.rate(metrics["rtd_accuracy_original"]) == 7 / 8
  assert [float(x) for x in metrics["rtd_accuracy_masked_correct"]] == [0, 1]
  assert [float(x) for x in metrics["rtd_accuracy_untouched"]] == [7, 7]


def test_losses_are_split_into_replaced_masked_but_correct_and_untouched_tokens():
  corrupted = views.view({}).corrupted
  logits = jnp.where(jnp.asarray(IS_ORIGINAL), 1.0, -1.0).at[0, 1].set(2.0).at[0, 3].set(-2.0)
  metrics = rtd_metrics(logits, corrupted)
  cost = {z: np.log1p(np.exp(-z)) for z in (-2, 1)}  # of a decision that is right by z
  expected = {
    "replaced": (cost[-2] + cost[1], 2),
    "masked_correct": (cost[-2], 1),
    "untouched": (7 * cost[1], 7),
  }
  for name, pair in expected.items():
    np.testing.assert_allclose(metrics[f"rtd_loss_{name}"], pair, rtol=1e-6, err_msg=name)


def test_the_head_is_linear_or_dense():
  linear = OBJECTIVE.init(jax.random.key(0), views.CONTEXT)["rtd"]
  dense = ReplacedTokenDetectionLoss(weight=1.0, head="dense").init(jax.random.key(0), views.CONTEXT)["rtd"]
  assert set(linear) == {"kernel", "bias"} and set(dense) == {"kernel", "bias", "dense"}
