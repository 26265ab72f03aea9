"""Contiguous crops of the original text, the second view for sequence contrast."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.corruption.masking import TokenIds
from pretrain.ops import row_random
from pretrain.ops.positions import segment_bounds
from pretrain.ops.row_random import Use
from pretrain.settings.objectives import crop_size


def crop_sizes(fraction: float, length: int) -> np.ndarray:
  """Returns the crop's tokens for items of 0..length tokens, [length + 1] int32: int(fraction * n).

  A fraction above 1 is a number of tokens: min(int(fraction), n). Source: official span_dataset.py.
  """
  return np.array([min(crop_size(fraction, n), n) for n in range(length + 1)], np.int32)


def crop_length(fraction: float, length: int, *, add_cls: bool) -> int:
  """Returns the static length of the crop view: even, for fused attention, and at most `length`.

  It must not change: attention dropout depends on it, and runs must resume under later versions of this code.
  """
  longest = int(crop_sizes(fraction, length)[-1]) + add_cls
  return min(longest + longest % 2, length)


def crop(
  ids: jax.Array, row_keys: jax.Array, tokens: TokenIds, *, fraction: float, add_cls: bool
) -> jax.Array:
  """Cuts a contiguous piece from every row at a uniformly random start: [batch, crop_length] int32.

  `ids` [batch, length] int32 and the crops are padded on the right. `fraction` is as in `crop_sizes`;
  `add_cls` inserts [CLS] before every crop, even one that begins with it.

  Source: COCO-LM section 3 (SCL); official span_dataset.py and --add-span-cls.
  """
  length = ids.shape[1]
  lengths = jnp.sum(ids != tokens.pad, axis=-1)
  # A crop of everything, with [CLS], would have one token more than the position table has rows.
  sizes = jnp.asarray(np.minimum(crop_sizes(fraction, length), length - add_cls))[lengths]
  words = row_random.key_words(row_random.fold(row_keys, Use.CROP))
  starts = row_random.row_integers(words, (), lengths - sizes + 1)
  width = crop_length(fraction, length, add_cls=add_cls)
  index = jnp.arange(width - add_cls)
  source = jnp.minimum(starts[:, None] + index, length - 1)
  piece = jnp.where(index < sizes[:, None], jnp.take_along_axis(ids, source, axis=1), tokens.pad)
  if not add_cls:
    return piece
  # A row of padding stays empty, without [CLS].
  first = jnp.where(lengths > 0, tokens.cls, tokens.pad)[:, None]
  return jnp.concatenate([first.astype(ids.dtype), piece], axis=1)


def crop_segments(
  ids: jax.Array,
  segment_ids: jax.Array,
  row_keys: jax.Array,
  tokens: TokenIds,
  *,
  fraction: float,
  add_cls: bool,
) -> jax.Array:
  """Cuts a piece from every segment as `crop` does, in the segment's place: [batch, length] int32.

  `segment_ids` [batch, length] int32 are from 1, 0 at padding. A piece and its [CLS] have at most as many
  tokens as the segment. The first segment's draw is that of a row of one text.
  """
  length = ids.shape[1]
  starts, ends = segment_bounds(segment_ids)
  lengths = ends - starts + 1
  sizes = jnp.minimum(jnp.asarray(crop_sizes(fraction, length))[lengths], lengths - add_cls)
  words = row_random.key_words(row_random.fold(row_keys, Use.CROP))
  draws = row_random.row_bits(words, (length,))
  of_segment = jnp.take_along_axis(draws, jnp.maximum(segment_ids - 1, 0), axis=1)
  skipped = (of_segment % (lengths - sizes + 1).astype(jnp.uint32)).astype(jnp.int32)
  place = jnp.arange(length, dtype=jnp.int32) - starts - add_cls
  source = jnp.clip(starts + skipped + place, 0, length - 1)
  piece = jnp.where(place < sizes, jnp.take_along_axis(ids, source, axis=1), tokens.pad)
  return jnp.where(segment_ids > 0, jnp.where(place < 0, tokens.cls, piece), tokens.pad)
