"""Run: pytest tests/pretrain/corruption/test_cropping.py"""

import itertools

import numpy as np

from pretrain.corruption import masking
from pretrain.ops import row_random
from tests.pretrain.one_program import one_program
from tests.pretrain.small_recipe import TOKENS

crop, crop_segments = one_program(masking.crop), one_program(masking.crop_segments)


def _keys(rows: int):
  return one_program(row_random.step_row_keys)(0, 0, np.arange(rows))


def _ids(rows: int, length: int, tokens: int):
  """Rows [CLS], 10, 11, 12, ... with padding after `tokens` tokens: a token tells its place."""
  row = np.where(np.arange(length) < tokens, np.arange(length) + 9, TOKENS.pad).astype(np.int32)
  row[0] = TOKENS.cls if tokens else TOKENS.pad
  return np.tile(row, (rows, 1))


def _crop(ids, **options):
  return np.asarray(crop(ids, _keys(len(ids)), TOKENS, **{"fraction": 0.9, "add_cls": False, **options}))


def test_sizes_are_the_fraction_rounded_down_or_a_number_of_tokens_and_lengths_are_even_where_they_can():
  sizes = masking.crop_sizes(0.9, 512)
  assert [sizes[n] for n in (0, 1, 2, 10, 512)] == [0, 0, 1, 9, 460]
  assert [masking.crop_sizes(12.7, 20)[n] for n in (5, 12, 20)] == [5, 12, 12]
  np.testing.assert_array_equal(masking.crop_sizes(1.0, 5), [0, 1, 2, 3, 4, 5])
  assert [masking.crop_length(0.9, 512, add_cls=add_cls) for add_cls in (True, False)] == [462, 460]


def test_a_crop_is_one_contiguous_piece_and_starts_anywhere_it_fits():
  pieces = _crop(_ids(3_000, 30, 20), fraction=0.8)
  assert pieces.shape == (3_000, 24) and np.all(pieces[:, 16:] == TOKENS.pad)
  starts = np.where(pieces[:, 0] == TOKENS.cls, 0, pieces[:, 0] - 9)
  np.testing.assert_array_equal(pieces[:, 1:16], starts[:, None] + np.arange(10, 25))
  counts = np.bincount(starts, minlength=5)
  assert counts.size == 5
  assert ((counts - 600) ** 2 / 600).sum() < 4 + 4 * np.sqrt(8)


def test_cls_is_put_before_every_crop_also_before_one_that_begins_with_it_or_is_empty_but_not_at_padding():
  plain, with_cls = (_crop(_ids(50, 20, 20), add_cls=add_cls) for add_cls in (False, True))
  np.testing.assert_array_equal(with_cls[:, 0], TOKENS.cls)
  np.testing.assert_array_equal(with_cls[:, 1:19], plain[:, :18])
  assert (with_cls[:, 1] == TOKENS.cls).any()
  assert np.all(_crop(_ids(50, 20, 1)) == TOKENS.pad)
  of_one = _crop(_ids(50, 20, 1), add_cls=True)
  assert np.all(of_one[:, 0] == TOKENS.cls) and np.all(of_one[:, 1:] == TOKENS.pad)
  assert np.all(_crop(_ids(50, 20, 0), add_cls=True) == TOKENS.pad)


def test_the_view_is_never_longer_than_the_position_table(subtests):
  for fraction, add_cls in itertools.product((0.7, 0.9, 0.95, 1.0, 12, 20), (False, True)):
    with subtests.test(f"{fraction} {add_cls}"):
      pieces = _crop(_ids(4, 20, 20), fraction=fraction, add_cls=add_cls)
      assert pieces.shape[1] == masking.crop_length(fraction, 20, add_cls=add_cls) <= 20
      expected = min(int(fraction * 20) if fraction <= 1 else int(fraction), 20 - add_cls) + add_cls
      np.testing.assert_array_equal((pieces != TOKENS.pad).sum(axis=1), expected)


def _segments(sizes: list[int], length: int, rows: int) -> np.ndarray:
  numbers = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
  return np.tile(np.pad(numbers, (0, length - len(numbers))), (rows, 1))


def test_every_segment_has_a_crop_in_its_place(subtests):
  sizes, rows = [1, 2, 10, 6], 400
  numbers = _segments(sizes, 24, rows)
  ids = np.where(numbers > 0, np.arange(24) + 9, TOKENS.pad).astype(np.int32)
  ids[:, [0, 1, 3, 13]] = TOKENS.cls
  for fraction, add_cls in itertools.product((0.9, 1.0), (False, True)):
    with subtests.test(f"{fraction} {add_cls}"):
      pieces = np.asarray(
        crop_segments(ids, numbers, _keys(rows), TOKENS, fraction=fraction, add_cls=add_cls)
      )
      assert np.all(pieces[:, 19:] == TOKENS.pad)
      for start, size in zip((0, 1, 3, 13), sizes):
        own = pieces[:, start : start + size]
        if add_cls:
          np.testing.assert_array_equal(own[:, 0], TOKENS.cls)
          own = own[:, 1:]
        of_text = ids[0, start : start + size].tolist()
        cut = min(int(fraction * size), size - add_cls)
        allowed = {tuple(of_text[at : at + cut]) for at in range(size - cut + 1)}
        assert {tuple(row[:cut]) for row in own.tolist()} == allowed
        assert np.all(own[:, cut:] == TOKENS.pad)


def test_a_row_of_one_segment_has_the_crop_of_a_row(subtests):
  for tokens, add_cls in itertools.product((0, 1, 20), (False, True)):
    with subtests.test(f"{tokens} {add_cls}"):
      ids = _ids(50, 20, tokens)
      of_row = _crop(ids, add_cls=add_cls)
      numbers = _segments([tokens], 20, 50)
      found = np.asarray(crop_segments(ids, numbers, _keys(50), TOKENS, fraction=0.9, add_cls=add_cls))
      np.testing.assert_array_equal(found[:, : of_row.shape[1]], of_row)
      assert np.all(found[:, of_row.shape[1] :] == TOKENS.pad)
