"""Buckets, the order of examples, and batches of them."""

import itertools

import numpy as np
import pytest

from data.errors import DataError
from finetune.search import examples as of_examples
from finetune.search.examples import Examples, TrainingOrder, bucket_lengths, make_buckets, pad

PAD = 1


def _examples(sizes) -> Examples:
  ids = [np.arange(10, 10 + size, dtype=np.int32) for size in sizes]
  tokens = {"allowed": [np.ones(size, bool) for size in sizes]}
  return Examples(ids, {"labels": np.arange(len(sizes), dtype=np.int32)}, tokens)


def test_a_batch_is_filled_up_with_rows_of_weight_zero():
  batch = pad(_examples([3, 2, 4]), [2, 0], length=5, batch_size=3, pad_id=PAD)
  np.testing.assert_array_equal(batch["ids"], [[10, 11, 12, 13, 1], [10, 11, 12, 1, 1], [1, 1, 1, 1, 1]])
  np.testing.assert_array_equal(batch["weights"], [1, 1, 0])
  np.testing.assert_array_equal(batch["labels"], [2, 0, 0])
  assert batch["allowed"].dtype == bool
  np.testing.assert_array_equal(batch["allowed"].sum(axis=1), [4, 3, 0])
  with pytest.raises(DataError, match="4 tokens"):
    pad(_examples([4]), [0], length=3, batch_size=1, pad_id=PAD)
  with pytest.raises(DataError, match="no examples"):
    bucket_lengths(np.asarray([], np.int64), most=2, multiple=8)


def _padded(sizes, lengths) -> int:
  return sum(min(length for length in lengths if length >= size) for size in sizes)


def test_no_other_choice_of_lengths_pads_less():
  for most in (1, 2, 3, 5):
    sizes = np.random.default_rng(most).integers(1, 57, 40)
    found, possible = bucket_lengths(sizes, most=most, multiple=8), range(8, 64, 8)
    assert len(found) <= most and all(length % 8 == 0 for length in found)
    rivals = (choice for k in range(1, most + 1) for choice in itertools.combinations(possible, k))
    assert _padded(sizes, found) == min(_padded(sizes, one) for one in rivals if one[-1] >= max(sizes))


def test_buckets_hold_every_example_once_and_stay_below_the_longest_allowed():
  sizes = [3, 9, 17, 30, 8, 16]
  buckets = make_buckets(_examples(sizes), most=3, multiple=8, max_length=30)
  assert buckets.lengths == (8, 16, 30)
  assert [rows.tolist() for rows in buckets.members] == [[0, 4], [1, 5], [2, 3]]
  assert buckets.num_batches(2) == [1, 1, 1] and buckets.num_batches(1) == [2, 2, 2]
  assert f"({1 - 83 / (16 + 32 + 60):.0%} padding)" in buckets.describe(np.asarray(sizes))


def test_seeds_share_the_shapes_and_not_the_examples_of_an_epoch():
  sizes = np.random.default_rng(0).integers(2, 40, 50)
  order = TrainingOrder(make_buckets(_examples(sizes), most=3, multiple=8, max_length=40), 8, shape_seed=5)
  size = order.steps_per_epoch
  first, second = ([order.batch(seed, step) for step in range(3 * size)] for seed in (1, 2))
  for epoch in range(3):  # takes every example once
    assert sorted(np.concatenate([rows for _, rows in first[epoch * size : (epoch + 1) * size]])) == [
      *range(50)
    ]
  for one, other in zip(first, second):
    assert (one[0], len(one[1])) == (other[0], len(other[1])) and max(sizes[one[1]]) <= one[0]
  assert any(set(a) != set(b) for (_, a), (_, b) in zip(first, second))
  epochs = [[length for length, _ in part] for part in (first[:size], first[size : 2 * size])]
  assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
  together = [
    {frozenset(rows.tolist()) for _, rows in part} for part in (first[:size], first[size : 2 * size])
  ]
  assert not together[0] & together[1]  # no batch of an epoch is one of the next


def test_evaluation_visits_every_example_once():
  examples = _examples(np.random.default_rng(0).integers(1, 33, 50))
  buckets = make_buckets(examples, most=3, multiple=8, max_length=32)
  batches = list(of_examples.evaluation_batches(examples, buckets, batch_size=7, pad_id=PAD))
  assert sorted(np.concatenate([rows for rows, _ in batches])) == list(range(50))
  for rows, batch in batches:
    assert batch["labels"].shape == (7,)
    np.testing.assert_array_equal(batch["labels"][: len(rows)], rows)
