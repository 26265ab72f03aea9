"""Chooses tokens and replaces them, by masks or by random tokens; crops the original text.

All are functions of row keys only. A crop is the second view of a text for sequence contrast.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import row_random
from pretrain.ops.positions import gather_positions, scatter_positions, segment_bounds
from pretrain.ops.row_random import Use
from pretrain.settings.model import MaskingSettings
from pretrain.settings.objectives import crop_size


@dataclasses.dataclass(frozen=True)
class TokenIds:
  """Ids of a vocabulary's special tokens, and its size; they come from the vocabulary, never from code."""

  cls: int
  pad: int
  sep: int
  unk: int
  mask: int
  vocab_size: int
  word_starts: bytes = b""  # 0 or 1 for each id: whether it begins a word; only whole-word masks need it

  @property
  def special(self) -> tuple[int, ...]:
    """Ids that neither text nor random draws produce, ascending."""
    return tuple(sorted({self.cls, self.pad, self.sep, self.unk, self.mask}))


_MOST_OF_DEBERTA = 80  # official: max_preds_per_seq of its data sets


class Masking(NamedTuple):
  """The chosen positions of a batch, and the masked ids."""

  masked_ids: jax.Array  # [batch, length] int32, with [MASK] or the 80/10/10 mix at chosen positions
  positions: jax.Array  # [batch, capacity] int32, ascending (electra_google: as drawn); unused: `length`
  weights: jax.Array  # [batch, capacity] float32, 1 for used slots
  selected: jax.Array  # [batch, length] bool
  overflow: jax.Array  # [batch] int32, number of selections beyond the capacity


def capacity(settings: MaskingSettings, length: int) -> int:
  """Returns the largest number of masked positions in a row, the static size of arrays of slots.

  With the largest rate it is ceil(rate * length) for count rules; for Bernoulli draws and whole words, whose
  number of tokens varies, six standard deviations of Bernoulli draws above the mean, rounded up to a multiple
  of 8 (length 256, rate 0.15: 80).
  """
  rate = max(settings.rates)
  if settings.mask_rule == "bernoulli" or settings.whole_words:
    slots = math.ceil(rate * length + 6 * math.sqrt(rate * (1 - rate) * length))
    return min(-(-slots // 8) * 8, length)
  if settings.mask_rule == "electra_google":  # official: int((mask_prob + 0.005) * max_seq_length)
    return max(1, int((rate + 0.005) * length))
  if settings.mask_rule == "deberta":
    return min(_MOST_OF_DEBERTA, max(1, round(rate * length)))
  return math.ceil(rate * length)


def maskable_tokens(settings: MaskingSettings, ids: jax.Array, tokens: TokenIds) -> jax.Array:
  """Returns which tokens may be chosen, [batch, length] bool.

  'all': every token but padding (COCO-LM appendix D); 'sep_only': not [CLS]; 'none': no special token
  (Hugging Face's data collator, Google ELECTRA); [UNK] is a word and may be chosen.
  """
  excluded = {
    "all": (tokens.pad,),
    "sep_only": (tokens.pad, tokens.cls),
    "none": (tokens.pad, tokens.cls, tokens.sep, tokens.mask),
  }[settings.mask_special]
  return jnp.all(jnp.stack([ids != token for token in excluded]), axis=0)


def word_heads(ids: jax.Array, tokens: TokenIds) -> jax.Array:
  """Returns the position of the first token of each token's word, [batch, length] int32.

  Special tokens but [UNK] are words of one token, since a text may begin in the middle of a word.
  """
  assert tokens.word_starts, "whole words are found by the vocabulary's `word_starts`"
  is_alone = jnp.isin(ids, jnp.asarray([tokens.cls, tokens.pad, tokens.sep, tokens.mask]))
  is_behind = jnp.pad(is_alone[:, :-1], ((0, 0), (1, 0)), constant_values=True)
  begins = jnp.asarray(np.frombuffer(tokens.word_starts, bool))[ids] | is_alone | is_behind
  return jax.lax.cummax(jnp.where(begins, jnp.arange(ids.shape[1]), 0), axis=1)


def stage_of(settings: MaskingSettings, progress: jax.Array) -> jax.Array | None:
  """Returns each row's index in `mask_rates`, [batch] int32, at its progress; None if there are no stages."""
  if not settings.mask_rates:
    return None
  # A quotient of steps may be rounded to a little below the fraction at which a stage begins.
  starts = np.asarray([start * (1 - 2.0**-22) for start, _ in settings.mask_rates], np.float32)
  return jnp.sum(progress[:, None] >= starts, axis=1) - 1


def select_count(
  settings: MaskingSettings, row_keys: jax.Array, maskable: jax.Array, stage: jax.Array | None = None
) -> jax.Array:
  """Chooses floor(rate * n + u) of a row's n maskable tokens, uniformly without replacement.

  Each row has the rate of its `stage`, see `stage_of`. Returns [batch, length] bool. Source: official MC-BERT
  mask_tokens_dataset2.py (probabilistic rounding: the mean rate is exact).
  """
  length = maskable.shape[1]
  # Tables in float64: in float32, 0.15 * 20 would be slightly more than 3.
  expected = np.asarray(settings.rates)[:, None] * np.arange(length + 1, dtype=np.float64)
  whole = np.floor(expected)
  numbers = jnp.sum(maskable, axis=-1)

  def of_rows(table: np.ndarray) -> jax.Array:
    return jnp.asarray(table[0])[numbers] if stage is None else jnp.asarray(table)[stage, numbers]

  uniform = row_random.row_uniform(row_random.key_words(row_random.fold(row_keys, Use.MASK_COUNT)), ())
  rounds_up = uniform < of_rows((expected - whole).astype(np.float32))
  count = of_rows(whole.astype(np.int32)) + rounds_up
  words = row_random.key_words(row_random.fold(row_keys, Use.MASK_POSITIONS))
  priority = jnp.where(maskable, row_random.row_uniform(words, (length,)), 2.0)
  # Ranks by two stable sorts, so that ties are broken by position.
  ranks = jnp.argsort(jnp.argsort(priority, axis=-1, stable=True), axis=-1, stable=True)
  return maskable & (ranks < count[:, None])


def select_bernoulli(
  settings: MaskingSettings, row_keys: jax.Array, maskable: jax.Array, stage: jax.Array | None = None
) -> jax.Array:
  """Chooses each maskable token independently, with its row's rate as probability: [batch, length] bool.

  Source: Hugging Face DataCollatorForLanguageModeling, as TACO uses it.
  """
  words = row_random.key_words(row_random.fold(row_keys, Use.MASK_POSITIONS))
  rate = settings.rates[0] if stage is None else jnp.asarray(settings.rates, jnp.float32)[stage][:, None]
  return maskable & (row_random.row_uniform(words, maskable.shape[1:]) < rate)


def select_deberta(
  settings: MaskingSettings, row_keys: jax.Array, ids: jax.Array, maskable: jax.Array, tokens: TokenIds
) -> jax.Array:
  """Chooses one token of each window of int(1 / rate) maskable tokens, from the left: [batch, length] bool.

  At most max(1, round(rate * n)) of a row's n tokens are chosen, special tokens counted, and at most 80. At
  rate 0.15 the last tenth of a long row therefore has none. [UNK] is never chosen.

  Source: microsoft/DeBERTa mlm_task.py `NGramMaskGenerator` with runs of one token, as DeBERTaV3 uses it.
  """
  maskable &= ids != tokens.unk
  size = int(1 / settings.mask_rate)
  slots = capacity(settings, ids.shape[1])
  left = jnp.sum(maskable, axis=-1, dtype=jnp.int32)[:, None] - size * jnp.arange(slots)
  words = row_random.key_words(row_random.fold(row_keys, Use.MASK_POSITIONS))
  drawn = row_random.row_integers(words, (slots,), jnp.clip(left, 1, size))
  order = jnp.cumsum(maskable, axis=-1, dtype=jnp.int32) - 1
  window = jnp.clip(order // size, 0, slots - 1)
  is_drawn = maskable & (order == window * size + jnp.take_along_axis(drawn, window, axis=1))
  # A table in float64, as the official rounding.
  most = np.clip(np.round(settings.mask_rate * np.arange(ids.shape[1] + 1)), 1, slots).astype(np.int32)
  lengths = jnp.sum(ids != tokens.pad, axis=-1, keepdims=True)
  return is_drawn & (window < jnp.asarray(most)[lengths])


def random_tokens(words: jax.Array, shape: tuple[int, ...], tokens: TokenIds, *, special: bool) -> jax.Array:
  """Draws [batch, *shape] int32 token ids uniformly; special ones only if `special`."""
  if special:
    return row_random.row_integers(words, shape, tokens.vocab_size)
  drawn = row_random.row_integers(words, shape, tokens.vocab_size - len(tokens.special))
  for token in tokens.special:  # ascending order, so that each id is skipped in turn
    drawn = drawn + (drawn >= token)
  return drawn


def _masked_ids(
  settings: MaskingSettings,
  row_keys: jax.Array,
  ids: jax.Array,
  selected: jax.Array,
  tokens: TokenIds,
  heads: jax.Array | None = None,
) -> jax.Array:
  """Puts [MASK] at the chosen tokens, or BERT's mix of [MASK], random and unchanged tokens or whole words."""
  if settings.mask_token_rate == 1.0:
    return jnp.where(selected, tokens.mask, ids)
  kind = row_random.row_uniform(row_random.key_words(row_random.fold(row_keys, Use.MASK_KIND)), ids.shape[1:])
  kind = kind if heads is None else jnp.take_along_axis(kind, heads, axis=1)
  words = row_random.key_words(row_random.fold(row_keys, Use.RANDOM_TOKEN))
  drawn = random_tokens(words, ids.shape[1:], tokens, special=settings.random_token_from == "all")
  is_random = kind >= 1.0 - settings.random_token_rate
  mixed = jnp.where(kind < settings.mask_token_rate, tokens.mask, jnp.where(is_random, drawn, ids))
  return jnp.where(selected, mixed, ids)


def _mask_electra_google(
  settings: MaskingSettings, row_keys: jax.Array, ids: jax.Array, maskable: jax.Array, tokens: TokenIds
) -> Masking:
  """Masks by Google's rule: max(1, round(rate * length)) positions, drawn with replacement.

  A share `mask_token_rate` of them (0.85 there) becomes [MASK]; the rest keep their token. A position drawn
  twice has two slots and counts twice in the loss, as there.

  Source: google-research/electra pretrain/pretrain_helpers.py `mask`.
  """
  length, slots = ids.shape[1], capacity(settings, ids.shape[1])
  words = row_random.key_words(row_random.fold(row_keys, Use.MASK_POSITIONS))
  candidates, _, _ = gather_positions(maskable, length)
  numbers = jnp.sum(maskable, axis=-1, dtype=jnp.int32)
  drawn = row_random.row_integers(words, (slots,), numbers[:, None])
  lengths = jnp.sum(ids != tokens.pad, axis=-1)
  count = jnp.clip(jnp.round(settings.mask_rate * lengths).astype(jnp.int32), 1, slots)
  used = (jnp.arange(slots) < count[:, None]) & (numbers > 0)[:, None]
  positions = jnp.where(used, jnp.take_along_axis(candidates, drawn, axis=1), length)
  kind = row_random.row_uniform(row_random.key_words(row_random.fold(row_keys, Use.MASK_KIND)), (slots,))
  becomes_mask = jnp.where(kind < settings.mask_token_rate, positions, length)
  masked = scatter_positions(ids, becomes_mask, jnp.full_like(positions, tokens.mask))
  selected = scatter_positions(jnp.zeros(ids.shape, bool), positions, used)
  no_overflow = jnp.zeros(ids.shape[:1], jnp.int32)
  return Masking(masked, positions, used.astype(jnp.float32), selected, no_overflow)


def masking_of(
  settings: MaskingSettings,
  row_keys: jax.Array,
  ids: jax.Array,
  selected: jax.Array,
  tokens: TokenIds,
  heads: jax.Array | None = None,
) -> Masking:
  """Returns the `Masking` for chosen positions `selected` [batch, length] bool in ids [batch, length] int32.

  Selections beyond the capacity are neither masked nor predicted. `heads` are those of `word_heads`, if all
  tokens of a word are to be replaced in the same way.
  """
  positions, weights, overflow = gather_positions(selected, capacity(settings, ids.shape[1]))
  kept = scatter_positions(jnp.zeros(ids.shape, bool), positions, weights > 0)
  masked = _masked_ids(settings, row_keys, ids, kept, tokens, heads)
  return Masking(masked, positions, weights, kept, overflow)


def select_and_mask(
  settings: MaskingSettings,
  row_keys: jax.Array,
  ids: jax.Array,
  tokens: TokenIds,
  stage: jax.Array | None = None,
) -> Masking:
  """Chooses tokens of ids [batch, length] int32 by the configured rule and masks them, never padding.

  With `whole_words` the rule chooses words, and all their tokens are masked. So the mean rate is exact, and a
  row's number of tokens varies. Source: fairseq, mask_tokens_dataset.py `mask_whole_words`.

  `stage` is that of `stage_of`; the rules 'electra_google' and 'deberta' have neither stages nor words.
  """
  maskable = maskable_tokens(settings, ids, tokens)
  if settings.mask_rule == "electra_google":
    return _mask_electra_google(settings, row_keys, ids, maskable, tokens)
  if settings.mask_rule == "deberta":
    selected = select_deberta(settings, row_keys, ids, maskable, tokens)
    return masking_of(settings, row_keys, ids, selected, tokens)
  select = {"count": select_count, "bernoulli": select_bernoulli}[settings.mask_rule]
  if not settings.whole_words:
    return masking_of(settings, row_keys, ids, select(settings, row_keys, maskable, stage), tokens)
  heads = word_heads(ids, tokens)
  firsts = maskable & (heads == jnp.arange(ids.shape[1]))
  selected = jnp.take_along_axis(select(settings, row_keys, firsts, stage), heads, axis=1)
  return masking_of(settings, row_keys, ids, selected, tokens, heads)


def replace_at_random(ids: jax.Array, row_keys: jax.Array, masking: Masking, tokens: TokenIds) -> jax.Array:
  """Returns ids [batch, length] int32 with random non-special tokens at the chosen positions."""
  words = row_random.key_words(row_random.fold(row_keys, Use.RANDOM_TOKEN))
  drawn = random_tokens(words, masking.positions.shape[1:], tokens, special=False)
  return scatter_positions(ids, masking.positions, drawn)


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
