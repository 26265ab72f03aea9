"""Attention a row at a time, and in blocks of long rows, against plain attention. Run with pytest"""

from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from pretrain.ops.attention import attention_bands, attention_rows
from tests.pretrain.ops.attention_cases import assert_same, at_tokens, case, long_case, plain, results

MASKS = {"key_mask": jnp.bool_, "segment_ids": jnp.int32}


def _found(of_case, implementation="by_rows"):
  return results(of_case.arrays, of_case.given, implementation=implementation, **of_case.options)


def test_padding_dropout_segments_and_window_equal_plain():
  for more in ({"dropout_rate": 0.25}, {"has_segments": True, "window": 5, "has_bias": False}):
    of_case = case(3, 20, 2, 8, **more)
    of_case.options["key_mask"] &= jnp.arange(20) % 7 != 3  # and some keys before the padding
    assert_same(_found(of_case), plain(of_case), tolerance=2e-6)  # float32 sums of 20 in another order


def test_bfloat16_stays_close_to_float32():
  of_case = case(3, 20, 2, 8, dtype=jnp.bfloat16, dropout_rate=0.25)
  # Products of values rounded to 8 bits, probabilities and gradients of scores rounded once more: 2**-8 each.
  assert_same(_found(of_case), plain(of_case), tolerance=3 * 2**-8)


@pytest.mark.parametrize("implementation", ["by_rows", "plain"])
@pytest.mark.parametrize("window", [5, 70])
def test_bands_of_rows_longer_than_the_window_equal_the_definition(implementation, window):
  of_case = long_case(2, 300, 2, 8, window=window)
  with mock.patch.object(attention_bands, "saves", return_value=False):
    expected = plain(of_case)
  jax.clear_caches()
  assert not attention_bands.saves(256, 5) and attention_bands.saves(257, 5)
  with mock.patch.object(attention_bands, "saves", return_value=True):
    assert_same(
      at_tokens(of_case, _found(of_case, implementation)), at_tokens(of_case, expected), tolerance=2e-6
    )
  jax.clear_caches()


@pytest.mark.parametrize("window", [None, 150])
def test_blocks_of_queries_of_a_long_row_equal_plain(monkeypatch, window):
  of_case = long_case(2, 300, 2, 8, window=window)
  expected = plain(of_case)
  jax.clear_caches()
  monkeypatch.setattr(attention_rows, "LONGEST", 100)
  assert_same(_found(of_case), expected, tolerance=2e-6)
  jax.clear_caches()


def test_a_local_layer_of_8192_tokens_needs_no_square_of_scores():
  of_case = jax.eval_shape(lambda: long_case(1, 8_192, 12, 64, window=64)._replace(options={}))
  masks = {name: jax.ShapeDtypeStruct((1, 8_192), kind) for name, kind in MASKS.items()}
  for window, most in ((64, 400e6), (None, 900e6)):
    program = results.lower(
      of_case.arrays, of_case.given, implementation="by_rows", window=window, **masks
    ).compile()
    found = program.memory_analysis().temp_size_in_bytes
    assert found < most, (window, found)  # scores of one row and all heads would be 3.2 GB
