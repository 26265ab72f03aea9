"""Run: pytest tests/pretrain/corruption/test_cropping.py"""

import numpy as np
import pytest

from pretrain.corruption import cropping
from pretrain.ops.draws import row_random
from tests.pretrain.one_program import one_program
from tests.pretrain.small_recipe import TOKENS

step_row_keys, crop = one_program(row_random.step_row_keys), one_program(cropping.crop)
crop_segments = one_program(cropping.crop_segments)


def _keys(rows: int, step: int = 0):
  return step_row_keys(0, np.asarray(step), np.arange(rows))


def _ids(rows: int, length: int, tokens: int):
  """Rows [CLS], 10, 11, 12, ... with padding after `tokens` tokens: a token tells its place."""
  row = np.where(np.arange(length) < tokens, np.arange(length) + 9, TOKENS.pad).astype(np.int32)
  row[0] = TOKENS.cls if tokens else TOKENS.pad
  return np.tile(row, (rows, 1))


def _crop(ids, *, keys=None, **options):
  keys = _keys(len(ids)) if keys is None else keys
  return np.asarray(crop(ids, keys, TOKENS, **{"fraction": 0.9, "add_cls": False, **options}))


def test_sizes_are_the_fraction_rounded_down_or_a_number_of_tokens():
  sizes = cropping.crop_sizes(0.9, 512)
  assert [sizes[n] for n in (0, 1, 2, 10, 512)] == [0, 0, 1, 9, 460]
  assert [cropping.crop_sizes(12.7, 20)[n] for n in (5, 12, 20)] == [5, 12, 12]
  np.testing.assert_array_equal(cropping.crop_sizes(1.0, 5), [0, 1, 2, 3, 4, 5])


def test_a_crop_is_one_contiguous_piece_of_the_original():
  pieces = _crop(_ids(200, 30, 20))
  assert pieces.shape == (200, 28)
  for piece in pieces:
    used = piece[piece != TOKENS.pad]
    assert len(used) == 18 and np.all(piece[18:] == TOKENS.pad)
    start = 0 if used[0] == TOKENS.cls else used[0] - 9
    np.testing.assert_array_equal(used[1:], np.arange(start + 1, start + 18) + 9)


def test_starts_are_uniform_over_every_place_the_crop_fits():
  pieces = _crop(_ids(3_000, 20, 20), fraction=0.8)
  starts = np.where(pieces[:, 0] == TOKENS.cls, 0, pieces[:, 0] - 9)
  counts = np.bincount(starts, minlength=5)
  assert counts.size == 5
  assert ((counts - 600) ** 2 / 600).sum() < 4 + 4 * np.sqrt(8)


def test_cls_is_put_before_every_crop_also_before_one_that_begins_with_it():
  plain, with_cls = (_crop(_ids(50, 20, 20), add_cls=add_cls) for add_cls in (False, True))
  np.testing.assert_array_equal(with_cls[:, 0], TOKENS.cls)
  np.testing.assert_array_equal(with_cls[:, 1:19], plain[:, :18])
  assert (with_cls[:, 1] == TOKENS.cls).any()


def test_one_token_leaves_an_empty_crop_and_padding_stays_padding():
  assert np.all(_crop(_ids(2, 20, 1)) == TOKENS.pad)
  with_cls = _crop(_ids(2, 20, 1), add_cls=True)
  np.testing.assert_array_equal(with_cls[:, 0], TOKENS.cls)
  assert np.all(with_cls[:, 1:] == TOKENS.pad)
  assert np.all(_crop(_ids(2, 20, 0), add_cls=True) == TOKENS.pad)


@pytest.mark.parametrize("fraction", [0.7, 0.9, 0.95, 1.0, 12, 20])
@pytest.mark.parametrize("add_cls", [False, True])
def test_the_view_is_never_longer_than_the_position_table(fraction, add_cls):
  pieces = _crop(_ids(4, 20, 20), fraction=fraction, add_cls=add_cls)
  assert pieces.shape[1] == cropping.crop_length(fraction, 20, add_cls=add_cls) <= 20
  expected = min(int(fraction * 20) if fraction <= 1 else int(fraction), 20 - add_cls) + add_cls
  np.testing.assert_array_equal((pieces != TOKENS.pad).sum(axis=1), expected)


def test_the_view_has_an_even_length_where_it_can():
  assert cropping.crop_length(0.9, 512, add_cls=True) == 462
  assert cropping.crop_length(0.9, 512, add_cls=False) == 460


def _segments(sizes: list[int], length: int) -> np.ndarray:
  numbers = np.repeat(np.arange(1, len(sizes) + 1), sizes)
  return np.pad(numbers, (0, length - len(numbers)))


@pytest.mark.parametrize("add_cls", [False, True])
@pytest.mark.parametrize("fraction", [0.9, 1.0])
def test_every_segment_has_a_crop_in_its_place(fraction, add_cls):
  sizes, rows = [1, 2, 10, 6], 400
  numbers = np.tile(_segments(sizes, 24), (rows, 1))
  ids = np.where(numbers > 0, np.arange(24) + 9, TOKENS.pad).astype(np.int32)
  ids[:, [0, 1, 3, 13]] = TOKENS.cls
  pieces = np.asarray(
    crop_segments(ids, numbers.astype(np.int32), _keys(rows), TOKENS, fraction=fraction, add_cls=add_cls)
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


@pytest.mark.parametrize("add_cls", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 7, 20])
def test_a_row_of_one_segment_has_the_crop_of_a_row(tokens, add_cls):
  ids, numbers = _ids(30, 20, tokens), np.tile(_segments([tokens], 20), (30, 1)).astype(np.int32)
  options = {"fraction": 0.9, "add_cls": add_cls}
  of_row = _crop(ids, **options)
  of_segment = np.asarray(crop_segments(ids, numbers, _keys(30), TOKENS, **options))
  np.testing.assert_array_equal(of_segment[:, : of_row.shape[1]], of_row)
  assert np.all(of_segment[:, of_row.shape[1] :] == TOKENS.pad)
