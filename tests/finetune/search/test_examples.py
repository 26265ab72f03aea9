"""Buckets, the order of examples, and batches of them."""

import itertools

import numpy as np
import pytest

from data.errors import DataError
from finetune.search.examples import (
  Examples,
  TrainingOrder,
  bucket_lengths,
  evaluation_batches,
  make_buckets,
  pad,
)

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


def test_an_example_longer_than_its_batch_is_refused():
  with pytest.raises(DataError, match="4 tokens"):
    pad(_examples([4]), [0], length=3, batch_size=1, pad_id=PAD)


def _padded(sizes, lengths) -> int:
  return sum(min(length for length in lengths if length >= size) for size in sizes)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_no_other_choice_of_lengths_pads_less(most):
  sizes = np.random.default_rng(most).integers(1, 57, 40)
  found = bucket_lengths(sizes, most=most, multiple=8)
  assert len(found) <= most and all(length % 8 == 0 for length in found)
  possible = range(8, 64, 8)
  rivals = [c for k in range(1, most + 1) for c in itertools.combinations(possible, k) if c[-1] >= max(sizes)]
  assert _padded(sizes, found) == min(_padded(sizes, rival) for rival in rivals)


def test_no_examples_are_refused():
  with pytest.raises(DataError, match="no examples"):
    bucket_lengths(np.asarray([], np.int64), most=2, multiple=8)


def test_buckets_hold_every_example_once_and_stay_below_the_longest_allowed():
  examples = _examples([3, 9, 17, 30, 8, 16])
  buckets = make_buckets(examples, most=3, multiple=8, max_length=30)
  assert buckets.lengths[-1] == 30
  assert sorted(np.concatenate(buckets.members)) == list(range(6))
  for length, rows in zip(buckets.lengths, buckets.members):
    assert all(len(examples.ids[row]) <= length for row in rows)
  waste = 1 - 83 / _padded([3, 9, 17, 30, 8, 16], buckets.lengths)
  assert f"({waste:.0%} padding)" in buckets.describe(examples.sizes)


def _order() -> TrainingOrder:
  sizes = np.random.default_rng(0).integers(2, 40, 50)
  return TrainingOrder(make_buckets(_examples(sizes), most=3, multiple=8, max_length=40), 8, shape_seed=5)


def test_an_epoch_takes_every_example_once():
  order = _order()
  for epoch in range(3):
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    taken = np.concatenate([order.batch(7, step)[1] for step in steps])
    assert sorted(taken) == list(range(50))


def test_seeds_share_the_shapes_and_not_the_examples():
  order = _order()
  steps = range(2 * order.steps_per_epoch)
  first, second = ([order.batch(seed, step) for step in steps] for seed in (1, 2))
  assert [length for length, _ in first] == [length for length, _ in second]
  assert [len(rows) for _, rows in first] == [len(rows) for _, rows in second]
  assert any(set(a) != set(b) for (_, a), (_, b) in zip(first, second))
  epochs = [
    [length for length, _ in first[: order.steps_per_epoch]],
    [length for length, _ in first[order.steps_per_epoch :]],
  ]
  assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
  together = [
    {frozenset(rows.tolist()) for _, rows in part}
    for part in (first[: order.steps_per_epoch], first[order.steps_per_epoch :])
  ]
  assert not together[0] & together[1]  # no batch of an epoch is one of the next


def test_evaluation_visits_every_example_once():
  examples = _examples(np.random.default_rng(0).integers(1, 33, 50))
  buckets = make_buckets(examples, most=3, multiple=8, max_length=32)
  batches = list(evaluation_batches(examples, buckets, num_runs=2, batch_size=7, pad_id=PAD))
  assert sorted(np.concatenate([rows for rows, _ in batches])) == list(range(50))
  for rows, batch in batches:
    assert batch["labels"].shape == (2, 7)
    np.testing.assert_array_equal(batch["labels"][1, : len(rows)], rows)
