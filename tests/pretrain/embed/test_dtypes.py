"""The forms of stored vectors: what is kept, how it is undone, and what they need."""

import numpy as np
import pytest

from pretrain.embed import dtypes


@pytest.fixture
def vectors() -> np.ndarray:
  return dtypes.unit(np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32))


def test_each_form_gives_the_vectors_back_within_its_rounding(vectors):
  largest = np.abs(vectors).max(axis=1, keepdims=True)
  bounds = {"float32": 0 * largest, "float16": 2**-11 * largest, "int8": largest / 127}
  for dtype, bound in bounds.items():
    stored = dtypes.compressed(vectors, dtype)
    assert stored.dtype == dtypes.stored_type(dtype) and stored.shape == (50, dtypes.stored_width(64, dtype))
    assert dtypes.restored(stored).dtype == np.float32
    assert (np.abs(dtypes.restored(stored) - vectors) <= bound).all(), dtype
    again = dtypes.compressed(dtypes.restored(stored), dtype)
    np.testing.assert_array_equal(again, stored)


def test_a_vector_in_int8_depends_on_no_other(vectors):
  alone = [dtypes.compressed(vector, "int8") for vector in vectors]
  np.testing.assert_array_equal(dtypes.compressed(vectors, "int8"), alone)
  assert {np.abs(vector).max() for vector in np.asarray(alone, int)} == {127}


def test_bits_are_the_signs_and_get_unit_length(vectors):
  stored = dtypes.compressed(vectors, "binary")
  assert stored.shape == (50, 8) and stored[0, 0] == int("".join("01"[int(x > 0)] for x in vectors[0, :8]), 2)
  np.testing.assert_array_equal(dtypes.restored(stored), np.where(vectors > 0, 1, -1) / np.float32(8))


def test_a_vector_of_zeros_stays():
  zeros = np.zeros((1, 8), np.float32)
  for dtype in ("float32", "float16", "int8"):
    np.testing.assert_array_equal(dtypes.restored(dtypes.compressed(zeros, dtype)), zeros)
