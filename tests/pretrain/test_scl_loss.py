"""Run: pytest tests/pretrain/test_scl_loss.py. Sequences are contrasted in groups, so they go by rows."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain import losses
from tests.pretrain import drawn
from tests.pretrain.one_program import one_program


def _views(rows: int) -> tuple[np.ndarray, np.ndarray]:
  return np.asarray(drawn.normal(0, rows, 8)), np.asarray(drawn.normal(1, rows, 8))


@one_program
def _scl(first, second, weights, group_size):
  cosines = losses.sequence_cosines(first, second, group_size=group_size)
  return losses.sequence_contrastive_loss(cosines, weights.reshape(-1, group_size), temperature=0.7)


def test_scl_rows_of_weight_zero_are_neither_anchors_nor_negatives():
  first, second = _views(4)
  keep = np.asarray([0, 1, 3])
  weights = np.float32([1.0, 1.0, 0.0, 1.0])
  removed = _scl(first[keep], second[keep], np.ones(3), 3)
  np.testing.assert_allclose(_scl(first, second, weights, 4), removed, rtol=1e-5)
  gradients = one_program(jax.grad(_scl, argnums=(0, 1)))(first, second, weights, 4)
  for gradient in gradients:
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[2] == 0)
    assert np.all(np.any(np.asarray(gradient)[keep] != 0, axis=-1))


def test_scl_of_groups_is_the_sum_over_groups_and_jit_agrees():
  eager = _scl.__wrapped__
  first, second = drawn.normal(0, 6, 8), drawn.normal(1, 6, 8)
  whole = _scl(first, second, np.ones(6), 3)
  parts = sum(eager(first[i : i + 3], second[i : i + 3], jnp.ones(3), 3) for i in (0, 3))
  np.testing.assert_allclose(whole, parts, rtol=1e-6)


def test_scl_without_any_row_gives_zero_and_a_zero_gradient():
  loss, gradient = one_program(jax.value_and_grad(_scl))(*np.zeros((2, 2, 8)), np.zeros(2), 2)
  assert float(loss) == 0.0
  assert np.all(np.asarray(gradient) == 0)


def test_scl_normalises_in_float32_whatever_comes_in():
  first, second = _views(4)
  low = _scl(first.astype(jnp.bfloat16), second.astype(jnp.bfloat16), np.ones(4), 4)
  assert low.dtype == jnp.float32
  np.testing.assert_allclose(low, _scl(first, second, np.ones(4), 4), rtol=1e-2)  # inputs rounded to 0.4 %
  scaled = _scl(1e3 * first, second, np.ones(4), 4)
  np.testing.assert_allclose(scaled, _scl(first, second, np.ones(4), 4), rtol=1e-5)
