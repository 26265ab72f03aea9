"""Attention at some positions against attention everywhere. Run with pytest"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.ops.attention import attention, attention_at
from tests.pretrain.ops.attention_cases import long_case

READ = np.sort(np.random.default_rng(0).permutation(300)[:100]).astype(np.int32)[None] * np.ones(
  (2, 1), np.int32
)


def _results(function, wide, given):
  out, backward = jax.vjp(function, *wide)
  return out, *backward(given)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("block", [256, 32])
def test_some_positions_of_a_long_row_equal_the_whole_at_them(monkeypatch, window, block):
  monkeypatch.setattr(attention_at, "LONGEST", 100)
  monkeypatch.setattr(attention_at, "_BLOCK", block)
  of_case = long_case(2, 300, 2, 8, window=window)
  query, key, value, bias = of_case.arrays
  real = jnp.take_along_axis(of_case.options["key_mask"], READ, axis=1)[..., None, None]

  def whole(query, key, value):
    attended = attention.attention(query, key, value, bias=bias, implementation="plain", **of_case.options)
    return attended[:, READ[0]] * real

  def part(query, key, value):
    attended = attention_at.attention_at(query[:, READ[0]], key, value, READ, bias=bias, **of_case.options)
    return attended * real

  given = of_case.given[:, READ[0]]
  for found, expected in zip(*(_results(each, (query, key, value), given) for each in (part, whole))):
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
