"""One vector of a text, by hand, and nothing from padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.ops.pooling import pool

HIDDEN = jnp.asarray([[[1.0, 4.0], [3.0, -2.0], [9.0, 9.0]], [[7.0, 7.0]] * 3])
MASK = jnp.asarray([[True, True, False], [False] * 3])


@pytest.mark.parametrize(("kind", "expected"), [("cls", [1, 4]), ("mean", [2, 1]), ("max", [3, 4])])
def test_poolings_of_a_text(kind, expected):
  np.testing.assert_array_equal(pool(HIDDEN, MASK, kind)[0], expected)


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_padding_gives_nothing_and_no_gradient(kind):
  np.testing.assert_array_equal(pool(HIDDEN, MASK, kind)[1], 0.0)
  gradient = jax.grad(lambda hidden: jnp.sum(pool(hidden, MASK, kind) ** 2))(HIDDEN)
  np.testing.assert_array_equal(gradient[0, 2], 0.0)
  np.testing.assert_array_equal(gradient[1], 0.0)
  assert np.any(gradient[0, :2] != 0.0)


def test_an_unknown_pooling_is_refused():
  with pytest.raises(ValueError, match="expected one of cls, mean, max"):
    pool(HIDDEN, MASK, "sum")


def test_the_last_token_is_the_last_one_before_padding():
  hidden = jnp.arange(24.0).reshape(2, 4, 3)
  mask = jnp.asarray([[True, True, False, False], [True] * 4])
  np.testing.assert_array_equal(pool(hidden, mask, "last"), [[3, 4, 5], [21, 22, 23]])
