"""Run: pytest tests/pretrain/objectives/test_mlm.py"""

import jax
import numpy as np
import pytest

from pretrain.models import heads
from pretrain.objectives.mlm import MaskedLMLoss
from tests.pretrain import drawn
from tests.pretrain.objectives import views

HEAD = heads.init_mlm_head(jax.random.key(0), views.ENCODER, output_size=views.D)
HEAD["bias"] = drawn.normal(1, *HEAD["bias"].shape)


def _objective(**changes) -> MaskedLMLoss:
  return MaskedLMLoss(**{"weight": 1.0, "positions": "masked", **changes})


@pytest.fixture(scope="module")
def view():
  return views.view({"mlm": HEAD})


@pytest.fixture(scope="module")
def costs(view):
  """[batch, length] cross-entropy of the original token at every position."""
  transformed = heads.apply_transform(HEAD, views.ENCODER, view.hidden)
  log_probs = views.log_probs(transformed, view.token_table, HEAD["bias"])
  return -np.take_along_axis(log_probs, views.IDS[..., None], axis=-1)[..., 0]


def test_masked_positions_only(view, costs):
  terms = _objective()(view, views.CONTEXT)
  np.testing.assert_allclose(terms["masked_lm_loss"].loss, costs[views.SELECTED].sum(), rtol=1e-5)
  assert float(_objective().totals(view.corrupted)["masked_lm_loss"]) == 3
  assert float(terms["masked_lm_loss"].metrics["masked_lm_accuracy"][1]) == 3


def test_all_positions_in_one_mean_are_all_tokens_without_padding(view, costs):
  objective = _objective(positions="all")
  terms = objective(view, views.CONTEXT)
  is_token = views.IDS != 1
  assert set(terms) == {"token_lm_loss"}
  np.testing.assert_allclose(terms["token_lm_loss"].loss, costs[is_token].sum(), rtol=1e-5)
  assert float(objective.totals(view.corrupted)["token_lm_loss"]) == is_token.sum() == 10
  of_masked = terms["token_lm_loss"].metrics["masked_lm_loss"]
  np.testing.assert_allclose(of_masked[0], costs[views.SELECTED].sum(), rtol=1e-5)
