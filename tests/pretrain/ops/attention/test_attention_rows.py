"""Attention a row at a time against plain attention. Run with pytest"""

import jax.numpy as jnp

from tests.pretrain.ops.attention_cases import assert_same, case, plain, results


def _found(of_case):
  return results(of_case.arrays, of_case.given, implementation="by_rows", **of_case.options)


def test_padding_dropout_segments_and_window_equal_plain():
  for more in ({"dropout_rate": 0.25}, {"has_segments": True, "window": 5, "has_bias": False}):
    of_case = case(3, 20, 2, 8, **more)
    assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 20 in another order


def test_bfloat16_stays_close_to_float32():
  of_case = case(3, 20, 2, 8, dtype=jnp.bfloat16, dropout_rate=0.25)
  # Products of values rounded to 8 bits, probabilities and gradients of scores rounded once more: 2**-8 each.
  assert_same(_found(of_case), plain(of_case), tolerance=3 * 2**-8)
