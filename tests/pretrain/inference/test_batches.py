"""Texts of like length become batches of few shapes, and their outputs come back in order."""

import numpy as np

from pretrain.inference import batches


def _inputs(sizes) -> list[dict[str, np.ndarray]]:
  return [{"ids": np.arange(1, size + 1, dtype=np.int32), "on": np.ones(size, bool)} for size in sizes]


def test_the_ladder_ends_at_the_longest_and_pads_by_a_half_at_most():
  assert batches.ladder(300) == [16, 32, 48, 64, 96, 128, 192, 256, 300]
  for longest in (3, 16, 100, 128, 512):
    lengths = batches.ladder(longest)
    assert lengths[-1] == longest and lengths == sorted(set(lengths)), longest
    for size in range(1, longest + 1):
      assert min(length for length in lengths if length >= size) <= max(size + 15, 1.5 * size)


def test_outputs_come_back_in_order_through_few_shapes():
  sizes, seen = np.random.default_rng(0).integers(3, 65, 70), []

  def compute(batch):
    seen.append(batch["ids"].shape)
    assert np.array_equal(batch["ids"] != 0, batch["on"])
    return {"sum": batch["ids"].sum(axis=1), "ids": batch["ids"]}

  found = batches.outputs(_inputs(sizes), compute, batch_size=16, lengths=batches.ladder(64), pad_id=0)
  assert [int(each["sum"]) for each in found] == [size * (size + 1) // 2 for size in sizes.tolist()]
  # The longest first, the last six in a batch of eight.
  longest = np.sort(sizes)[::-1][::16]
  assert seen == [(rows, -(-size // 16) * 16) for rows, size in zip((16, 16, 16, 16, 8), longest.tolist())]


def test_the_last_batch_is_small_and_shared_out_among_devices():
  for count, multiple, rows in ((1, 1, 1), (3, 1, 4), (17, 1, 32), (1, 8, 8), (9, 8, 16), (8, 8, 8)):
    cuts = batches.cut(_inputs([5] * count), batch_size=32, lengths=[16], pad_id=0, multiple=multiple)
    ((numbers, batch),) = cuts
    assert batch["ids"].shape == (rows, 16) and sorted(numbers) == list(range(count)), (count, multiple)
  ((_, batch),) = batches.cut(_inputs([5] * 9), batch_size=12, lengths=[16], pad_id=0)
  assert batch["ids"].shape == (12, 16)  # a power of two would be more than a batch
  batch = batches.pad(_inputs([2]), rows=2, length=4, pad_id=9)
  np.testing.assert_array_equal(batch["ids"], [[1, 2, 9, 9], [9, 9, 9, 9]])
  np.testing.assert_array_equal(batch["on"], [[1, 1, 0, 0], [0, 0, 0, 0]])
