"""Run: pytest tests/pretrain/objectives/test_scl.py"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain import losses
from pretrain.models import heads
from pretrain.objectives.scl import SequenceContrastLoss, scl_metrics
from tests.pretrain.objectives import views


def _objective(**changes) -> SequenceContrastLoss:
  fields = {"weight": 1.0, "crop_fraction": 0.9, "crop_add_cls": True, "temperature": 1.0}
  return SequenceContrastLoss(**{**fields, "head": "cls", "projection_size": 0, "group_size": 2, **changes})


def test_the_state_of_cls_is_contrasted_with_that_of_the_crop():
  view = views.view({})
  anchors = np.concatenate([np.asarray(view.hidden[:, 0]), np.asarray(view.crop_hidden)]).astype(np.float64)
  anchors /= np.linalg.norm(anchors, axis=-1, keepdims=True)
  expected = 0.0
  for i in range(4):
    scores = {j: math.exp(anchors[i] @ anchors[j] / 0.5) for j in range(4) if j != i}
    expected -= math.log(scores[(i + 2) % 4] / sum(scores.values()))
  found = _objective(temperature=0.5)(view, views.CONTEXT)["scl_loss"].loss
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert float(_objective().totals(view.corrupted)["scl_loss"]) == 4


def test_the_projection_head_is_applied_to_both_views():
  objective = _objective(head="projection", projection_size=5)
  params = objective.init(jax.random.key(0), views.CONTEXT)
  assert params["scl"]["dense"]["kernel"].shape == (views.D, 5)
  view = views.view(params)
  both = [
    heads.apply_transform(params["scl"], views.ENCODER, x) for x in (view.hidden[:, 0], view.crop_hidden)
  ]
  cosines = losses.sequence_cosines(*both, group_size=2)
  expected = losses.sequence_contrastive_loss(cosines, jnp.ones((1, 2)))
  np.testing.assert_allclose(objective(view, views.CONTEXT)["scl_loss"].loss, expected, rtol=1e-6)
  assert _objective().init(jax.random.key(0), views.CONTEXT) == {}


def test_projection_size_zero_means_the_width_of_the_encoder():
  params = _objective(head="projection").init(jax.random.key(0), views.CONTEXT)
  assert params["scl"]["dense"]["kernel"].shape == (views.D, views.D)


def test_group_size_zero_contrasts_all_rows_and_one_leaves_only_partners():
  view = views.view({})
  whole = _objective(group_size=0)(view, views.CONTEXT)["scl_loss"].loss
  np.testing.assert_array_equal(whole, _objective(group_size=2)(view, views.CONTEXT)["scl_loss"].loss)
  assert float(_objective(group_size=1)(view, views.CONTEXT)["scl_loss"].loss) == 0.0


@pytest.mark.parametrize("weights, anchors", [([1.0, 1.0], 4), ([1.0, 0.0], 2)])
def test_metrics_split_partners_from_others_and_skip_rows_of_padding(weights, anchors):
  # Row 0's views agree by 0.9, row 1's by 0.1; every other pair by 0.5.
  cosines = jnp.full((4, 4), 0.5).at[jnp.arange(4), jnp.arange(4)].set(1.0)
  cosines = cosines.at[0, 2].set(0.9).at[2, 0].set(0.9).at[1, 3].set(0.1).at[3, 1].set(0.1)
  metrics = scl_metrics(cosines[None], jnp.asarray([weights]))
  np.testing.assert_allclose(views.rate(metrics["scl_cosine_positive"]), 0.5 if anchors == 4 else 0.9)
  np.testing.assert_allclose(metrics["scl_cosine_negative"], (4.0, 8.0) if anchors == 4 else (0.0, 0.0))
  assert views.rate(metrics["scl_accuracy"]) == (0.5 if anchors == 4 else 1.0)
  assert float(metrics["scl_accuracy"][1]) == anchors
