"""Run: pytest tests/pretrain/test_scl_loss.py. Sequences are contrasted in groups, so they go by rows."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain import losses
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program

FIRST, SECOND = (np.asarray(drawn.normal(seed, 6, 8)) for seed in (0, 1))


@one_program
def _scl(first, second, weights, group_size):
  cosines = losses.sequence_cosines(first, second, group_size=group_size)
  return losses.sequence_contrastive_loss(cosines, weights.reshape(-1, group_size), temperature=0.7)


def test_scl_rows_of_weight_zero_are_neither_anchors_nor_negatives():
  keep, weights = np.asarray([0, 1, 3]), np.float32([1.0, 1.0, 0.0, 1.0])
  found, gradients = one_program(jax.value_and_grad(_scl, argnums=(0, 1)))(FIRST[:4], SECOND[:4], weights, 4)
  np.testing.assert_allclose(found, _scl(FIRST[keep], SECOND[keep], np.ones(3), 3), rtol=1e-5)
  for gradient in gradients:
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[2] == 0)
    assert np.all(np.any(np.asarray(gradient)[keep] != 0, axis=-1))
  loss, gradient = one_program(jax.value_and_grad(_scl))(*np.zeros((2, 2, 8)), np.zeros(2), 2)
  assert float(loss) == 0.0 and not np.any(gradient)


def test_scl_of_groups_is_the_sum_over_groups():
  parts = [_scl(FIRST[at : at + 3], SECOND[at : at + 3], np.ones(3), 3) for at in (0, 3)]
  np.testing.assert_allclose(_scl(FIRST, SECOND, np.ones(6), 3), np.sum(parts), rtol=1e-6)


def test_scl_normalises_in_float32_whatever_comes_in():
  expected = _scl(FIRST, SECOND, np.ones(6), 3)
  low = _scl(FIRST.astype(jnp.bfloat16), SECOND.astype(jnp.bfloat16), np.ones(6), 3)
  assert low.dtype == jnp.float32
  np.testing.assert_allclose(low, expected, rtol=1e-2)  # inputs rounded to 0.4 %
  np.testing.assert_allclose(_scl(1e3 * FIRST, SECOND, np.ones(6), 3), expected, rtol=1e-5)


def test_sequences_of_one_row_are_no_negatives_of_each_other():
  """Two rows of two sequences each, all orthogonal: an anchor has its partner and four others at cosine 0."""
  views = np.eye(4, dtype=np.float32)
  cosines = losses.sequence_cosines(views, views, group_size=4)
  loss = losses.sequence_contrastive_loss(cosines, jnp.ones((1, 4)), slots=2)
  np.testing.assert_allclose(loss, 8 * (np.log(np.e + 4) - 1), rtol=1e-6)
