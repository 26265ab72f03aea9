"""Run: pytest tests/pretrain/ops/test_rope.py. Rotary positions."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.ops import rope
from tests.pretrain import drawn


def test_a_pair_turns_by_its_position_times_its_frequency():
  x = jnp.asarray([[[[1.0, 0.0, 0.0, 2.0]]] * 3]).reshape(1, 3, 1, 4)  # pairs (1, 0) and (0, 2)
  found = rope.rotate(x, None, length=3, theta=16.0)
  for position in range(3):
    slow = position / 4  # 16 ** -0.5
    expected = [np.cos(position), -2 * np.sin(slow), np.sin(position), 2 * np.cos(slow)]
    np.testing.assert_allclose(found[0, position, 0], expected, atol=1e-6)


def test_products_of_rotated_vectors_depend_on_their_distance_alone():
  query, key = drawn.normal(0, 1, 1, 2, 8), drawn.normal(1, 1, 1, 2, 8)

  def product(at_query, at_key):
    turned = (
      rope.rotate(x, jnp.full((1, 1), at), length=40, theta=100.0)
      for x, at in ((query, at_query), (key, at_key))
    )
    return jnp.einsum("blhd,blhd->h", *turned)

  np.testing.assert_allclose(product(3, 7), product(30, 34), atol=1e-5)
  assert np.all(np.abs(product(3, 7) - product(3, 8)) > 1e-3)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_tables_have_the_frequencies_of_pytorch(theta):
  torch = pytest.importorskip("torch")
  exponents = torch.arange(0, 64, 2, dtype=torch.int64).to(torch.float32) / 64
  frequencies = 1.0 / theta**exponents
  angles = torch.arange(8_192, dtype=torch.float32)[:, None] * frequencies[None, :]
  cosines, sines = rope.tables(8_192, 64, theta)
  # NumPy's cosine of a float32 differs from PyTorch's in its last bit; other frequencies give 2e-4.
  np.testing.assert_allclose(cosines, torch.cos(angles).numpy(), rtol=0, atol=1.2e-7)
  np.testing.assert_allclose(sines, torch.sin(angles).numpy(), rtol=0, atol=1.2e-7)


def test_sixteen_bits_are_rotated_in_float32():
  x = drawn.normal(0, 1, 600, 1, 8).astype(jnp.bfloat16)
  found = rope.rotate(x, None, length=600, theta=100.0)
  expected = rope.rotate(x.astype(jnp.float32), None, length=600, theta=100.0)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found, expected.astype(jnp.bfloat16))


def test_rotating_in_registers_of_a_tpu_is_the_same_rotation_with_the_same_gradient():
  x, given = (drawn.normal(seed, 2, 9, 4, 64) for seed in range(2))
  positions = jnp.asarray(np.random.default_rng(0).integers(0, 9, (2, 9)), jnp.int32)
  for at in (None, positions):

    def rotated(x, at=at):
      return rope.rotate(x, at, length=9, theta=10_000.0)

    expected, backward = jax.vjp(rotated, x)
    with (
      mock.patch.object(rope, "platform", return_value="tpu"),
      mock.patch.object(rope, "rotate_lanes", wraps=rope.rotate_lanes) as used,
    ):
      found, backward_by_lanes = jax.vjp(rotated, x)
    assert used.called
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(backward_by_lanes(given)[0], backward(given)[0], atol=1e-6)
