"""Run: pytest tests/pretrain/models/test_relative_position.py"""

import numpy as np

from pretrain.models.relative_position import official_buckets, official_signed_buckets, t5_buckets

SIZES = {"num_buckets": 32, "max_distance": 128}


def test_t5_buckets_have_the_values_of_stock_mpnet():
  # Read from transformers' MPNet (32 buckets, distance 128).
  expected = {-300: 15, -128: 15, -64: 14, -32: 12, -16: 10, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17}
  expected |= {7: 23, 8: 24, 9: 24, 16: 26, 31: 27, 32: 28, 64: 30, 127: 31, 300: 31}
  buckets = t5_buckets(512, **SIZES)
  found = {delta: np.unique(np.diagonal(buckets, delta)).tolist() for delta in expected}
  assert found == {delta: [bucket] for delta, bucket in expected.items()}


def test_t5_buckets_use_every_row_but_the_first_of_the_right_side():
  for buckets, distance in ((32, 128), (64, 128), (128, 256)):
    # T5 gives distance 0 to the left side.
    found = set(np.unique(t5_buckets(512, num_buckets=buckets, max_distance=distance)))
    assert found == set(range(buckets)) - {buckets // 2}


def test_official_buckets_round_up_from_half_of_the_exact_range_on():
  # 32 buckets, distance 128: magnitudes below 8 are exact; 8 + ceil(ln(9/8) / ln(127/8) * 7) = 9;
  # 8 + ceil(ln(16/8) / ln(127/8) * 7) = 8 + ceil(1.755) = 10; from 127 on the last one, 15.
  deltas = np.asarray([0, 1, 7, 8, 9, 16, 126, 127, 500])
  expected = np.asarray([0, 1, 7, 8, 9, 10, 15, 15, 15])
  for sign in (1, -1):
    np.testing.assert_array_equal(official_signed_buckets(sign * deltas, **SIZES), sign * expected)


def test_official_ids_are_a_part_of_the_models_table_and_leave_its_last_row_unused():
  buckets = official_buckets(512, **SIZES, max_length=512)
  assert set(np.unique(buckets)) == set(range(31)) and buckets[0, 0] == 15
  np.testing.assert_array_equal(official_buckets(20, **SIZES, max_length=512), buckets[:20, :20])
  short = official_buckets(10, **SIZES, max_length=10)
  assert short.min() == 0
  assert short[0, 0] == 9  # the lowest signed bucket of a table of 10 positions is -9: 8 + ceil(0.30)
