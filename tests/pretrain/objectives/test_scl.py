"""Run: pytest tests/pretrain/objectives/test_scl.py"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.models import heads
from pretrain.objectives.contrast import SequenceContrastLoss, scl_metrics
from tests.pretrain.objectives import views


def _objective(**changes) -> SequenceContrastLoss:
  fields = {"weight": 1.0, "crop_fraction": 0.9, "crop_add_cls": True, "temperature": 1.0}
  return SequenceContrastLoss(**{**fields, "head": "cls", "projection_size": 0, "group_size": 2, **changes})


def _contrast(first, second, temperature: float) -> float:
  anchors = np.concatenate([np.asarray(first), np.asarray(second)]).astype(np.float64)
  anchors /= np.linalg.norm(anchors, axis=-1, keepdims=True)
  loss = 0.0
  for i in range(4):
    scores = {j: math.exp(anchors[i] @ anchors[j] / temperature) for j in range(4) if j != i}
    loss -= math.log(scores[(i + 2) % 4] / sum(scores.values()))
  return loss


def test_the_state_of_cls_or_its_projection_is_contrasted_with_that_of_the_crop():
  view = views.view({})
  expected = _contrast(view.hidden[:, 0], view.crop_hidden, 0.5)
  for group_size in (2, 0):  # 0: all rows
    found = _objective(temperature=0.5, group_size=group_size)(view, views.CONTEXT)["scl_loss"].loss
    np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert float(_objective(group_size=1)(view, views.CONTEXT)["scl_loss"].loss) == 0.0  # only its partner
  assert float(_objective().totals(view.corrupted)["scl_loss"]) == 4
  assert _objective().init(jax.random.key(0), views.CONTEXT) == {}
  for size, width in ((5, 5), (0, views.D)):
    objective = _objective(head="projection", projection_size=size)
    params = objective.init(jax.random.key(0), views.CONTEXT)
    assert params["scl"]["dense"]["kernel"].shape == (views.D, width)
    both = [
      heads.apply_transform(params["scl"], views.ENCODER, x) for x in (view.hidden[:, 0], view.crop_hidden)
    ]
    found = objective(view._replace(heads=params), views.CONTEXT)["scl_loss"].loss
    np.testing.assert_allclose(found, _contrast(*both, 1.0), rtol=1e-5)


def test_metrics_split_partners_from_others_and_skip_rows_of_padding_and_the_same_row():
  # Row 0's views agree by 0.9, row 1's by 0.1; every other pair by 0.5.
  cosines = jnp.full((4, 4), 0.5).at[jnp.arange(4), jnp.arange(4)].set(1.0)
  cosines = cosines.at[0, 2].set(0.9).at[2, 0].set(0.9).at[1, 3].set(0.1).at[3, 1].set(0.1)
  for weights, slots, positive, negative, accuracy in (
    ([1.0, 1.0], 1, (2.0, 4), (4.0, 8), (2, 4)),
    ([1.0, 0.0], 1, (1.8, 2), (0.0, 0), (2, 2)),
    ([1.0, 1.0], 2, (2.0, 4), (0.0, 0), (4, 4)),  # two sequences of one row
  ):
    found = scl_metrics(cosines[None], jnp.asarray([weights]), slots=slots)
    expected = {"positive": positive, "negative": negative}
    for name, pair in expected.items():
      np.testing.assert_allclose(found[f"scl_cosine_{name}"], pair, rtol=1e-6)
    np.testing.assert_allclose(found["scl_accuracy"], accuracy)
