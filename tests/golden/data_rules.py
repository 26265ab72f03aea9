"""Golden kinds about data: b_relpos (bucket ids), b2_data (crops and masks), b3_packing (blocks)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from data.prepare import packing
from pretrain.corruption import masking
from pretrain.corruption.masking import MaskingSettings, TokenIds
from pretrain.ops import positions, row_random
from tests.golden.compare import Checks
from tests.golden.files import Golden

_TOKENS = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=1_000_000)
_FIRST_ID = 10  # ids of the made-up rows: the position + 10
_MASK_RULE = MaskingSettings("mask", "count", 0.15, "all", 1.0, 0.0, "non_special")
_OFFICIAL_DRAWS = 400  # epochs over which the files' ranges and frequencies were taken
_MASK_ROWS = 1_000  # a count of probability 0.05 is never seen with a chance of e^-51


def check_relative_positions(golden: Golden, checks: Checks) -> None:
  """Bucket ids of each (buckets, max distance, length) named in the keys."""
  for match in golden.groups(r"nb(\d+)_md(\d+)_len(\d+)/"):
    num_buckets, max_distance, length = (int(text) for text in match.groups())
    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    delta = np.arange(-(length - 1), length)
    signed = positions.official_signed_buckets(delta, **sizes)
    table = positions.official_buckets(length, max_length=length, **sizes)
    ours = {
      "delta": signed,
      "row0": table[0],
      "rowmid": table[length // 2],
      "rowlast": table[-1],
      "min": signed.min(),
      "max_id": table.max(),
    }
    checks.compare_all("buckets", match.group(), ours)


def _rows(lengths: list[int], counts: list[int]):
  """A padded batch with `counts[i]` rows of `lengths[i]` different tokens, its keys, and each row's length.

  One batch for all lengths: as in training, and every function is compiled once.
  """
  of_row = np.repeat(lengths, counts)
  position = np.arange(max(lengths))
  ids = np.where(position < of_row[:, None], position + _FIRST_ID, _TOKENS.pad).astype(np.int32)
  return jnp.asarray(ids), row_random.step_row_keys(0, 0, jnp.arange(len(of_row))), of_row


def check_data_rules(golden: Golden, checks: Checks) -> None:
  """Crop sizes and starts, numbers of masked tokens, and how often the first token is masked."""
  crops = golden.groups(r"crop/len(\d+)_span([\d.]+)$")
  for span in dict.fromkeys(match.group(2) for match in crops):
    keys = {int(match.group(1)): match.group() for match in crops if match.group(2) == span}
    _check_crops(golden, checks, keys, float(span))
  masks = golden.groups(r"mask/len(\d+)(?=$|_)")
  if masks:
    _check_masks(golden, checks, {int(match.group(1)): match.group() for match in masks})


def _check_crops(golden: Golden, checks: Checks, keys: dict[int, str], span: float) -> None:
  """Crops of one fraction; `keys` is {length: key}."""
  # 64 draws for each possible start: the chance that an extreme one never comes up is e^-64.
  counts = [64 * (length - int(golden[key][0]) + 1) for length, key in keys.items()]
  ids, row_keys, of_row = _rows(list(keys), counts)
  cut = jax.jit(functools.partial(masking.crop, tokens=_TOKENS, fraction=span, add_cls=False))
  pieces = np.asarray(cut(ids, row_keys))
  for length, key in keys.items():
    size, lowest, highest = (int(x) for x in golden[key])
    crops = pieces[of_row == length]
    sizes = np.sum(crops != _TOKENS.pad, axis=1)
    is_right, starts = set(sizes.tolist()) == {size}, "no start"
    if size > 0:
      first = crops[:, 0] - _FIRST_ID
      starts = f"starts {first.min()}..{first.max()}"
      is_contiguous = bool(np.all(crops[:, :size] == crops[:, :1] + np.arange(size)))
      whole_range = (int(first.min()), int(first.max())) == (0, length - size)
      is_right = is_right and is_contiguous and whole_range and lowest >= 0 and highest <= length - size
    found = (
      f"crops of {sorted(set(sizes.tolist()))} tokens, {starts}; expected {size}, {lowest}..{highest} seen"
    )
    checks.hold("crop", key, condition=is_right, found=found)


def _check_masks(golden: Golden, checks: Checks, keys: dict[int, str]) -> None:
  """Numbers of masked tokens; `keys` is {length: key}."""
  ids, row_keys, of_row = _rows(list(keys), [_MASK_ROWS] * len(keys))
  select = jax.jit(functools.partial(masking.select_and_mask, _MASK_RULE, tokens=_TOKENS))
  selected = np.asarray(select(row_keys, ids).selected)
  for length, key in keys.items():
    counts = selected[of_row == length].sum(axis=1)
    checks.compare("mask", key, np.array([counts.min(), counts.max()]))
    frequency_key = f"{key}_pos0_freq"
    if frequency_key in golden:
      rate = _MASK_RULE.mask_rate
      # Both are frequencies of random draws: five standard deviations of their difference.
      limit = 5.0 * math.sqrt(rate * (1.0 - rate) * (1 / _OFFICIAL_DRAWS + 1 / _MASK_ROWS))
      ours, theirs = float(selected[of_row == length, 0].mean()), float(golden[frequency_key])
      found = f"first token masked in {ours:.4f} of rows, expected {theirs:.4f} within {limit:.4f}"
      checks.hold("mask", frequency_key, condition=abs(ours - theirs) <= limit, found=found)


def check_whole_words(golden: Golden, checks: Checks) -> None:
  """Words of BERT's whole-word masks, and ours of the same rows by fairseq's rule, whose number differs.

  The spans of the same file are another rule, which nothing here computes.
  """
  tokens = TokenIds(0, 97, 1, 98, 99, vocab_size=100, word_starts=bytes(i % 3 != 2 for i in range(100)))
  for match in golden.groups(r"(whole_word/\d+)/cfg"):
    prefix, rate = match.group(1), float(golden[match.group()][1])
    ids, official = golden[f"{prefix}/tokens"], golden[f"{prefix}/chosen"].astype(bool)
    heads = np.asarray(masking.word_heads(jnp.asarray(ids), tokens))
    of_words = np.take_along_axis(official, heads, axis=1)
    is_inside = np.isin(ids, (tokens.cls, tokens.sep)) <= ~official
    whole = bool((of_words == official).all() and is_inside.all())
    checks.hold("words", f"{prefix}/tokens", condition=whole, found="official masks cut words found here")
    settings = MaskingSettings("mask", "count", rate, "none", 1.0, 0.0, "non_special", whole_words=True)
    rows = np.tile(ids, (_MASK_ROWS // len(ids), 1))
    keys = row_random.step_row_keys(0, 0, jnp.arange(len(rows)))
    ours = np.asarray(masking.select_and_mask(settings, keys, jnp.asarray(rows), tokens).selected)
    words = (heads == np.arange(ids.shape[1])) & (ids > tokens.sep)
    chosen = (ours.reshape(-1, *ids.shape) & words).sum(-1)
    exact = rate * words.sum(-1)
    is_number = (chosen == np.floor(exact)) | (chosen == np.ceil(exact))
    mean, expected = ours.sum() / len(rows), rate * (ids > tokens.sep).sum() / len(ids)
    # A row's number varies by fewer than four tokens.
    is_right = bool(is_number.all()) and abs(mean - expected) < 5 * 4 / math.sqrt(len(rows))
    found = f"{mean:.2f} tokens a row in {chosen.min()}..{chosen.max()} words, expected {expected:.2f}"
    checks.hold("words", f"{prefix}/chosen", condition=is_right, found=found)


def check_windows(golden: Golden, checks: Checks) -> None:
  """DeBERTa's masks, and ours of the same rows: one token of each window of 6, from the left.

  Runs of several tokens, in the same file, are not computed here.
  """
  settings = MaskingSettings("mask", "deberta", 0.15, "none", 1.0, 0.0, "non_special")
  ids, official = golden["n20_g1/tokens"], golden["n20_g1/chosen"].astype(bool)
  tokens = TokenIds(int(ids[0, 0]), 97, int(ids[0, -1]), 98, 99, vocab_size=100)
  number = masking.capacity(settings, ids.shape[1])
  checks.hold("windows", "n20_g1/number", condition=number == golden["n20_g1/number"], found=str(number))
  windows = np.arange(ids.shape[1] - 2) // 6
  rows = np.tile(ids, (_MASK_ROWS // len(ids), 1))
  keys = row_random.step_row_keys(0, 0, jnp.arange(len(rows)))
  ours = np.asarray(masking.select_and_mask(settings, keys, jnp.asarray(rows), tokens).selected)
  for key, chosen in (("n20_g1/chosen", official), ("n20_g1/tokens", ours)):
    inner = chosen[:, 1:-1]
    per_window = np.stack([inner[:, windows == window].sum(1) for window in range(windows[-1] + 1)], 1)
    is_right = bool(
      (per_window[:, :number] == 1).all() and per_window.sum() == chosen.sum() == number * len(chosen)
    )
    places = inner.mean(0) * 6  # the chance of a place is that of the others of its window
    is_even = bool(np.abs(places - 1).max() < 6 * math.sqrt(1 / 6 / len(chosen)) * 5)
    checks.hold("windows", key, condition=is_right and is_even, found=f"{places}")
  checks.compare("windows", "n20_g1/counts", ours[: len(ids)].sum(1))


def check_packing(golden: Golden, checks: Checks) -> None:
  """Start and end of every block in each packing mode the file has."""
  for match in golden.groups(r"(\d+)/"):
    prefix = match.group()
    sizes, block = golden[prefix + "sizes"], int(golden[prefix + "block"])
    for mode in golden.under(prefix):
      if mode not in ("sizes", "block"):
        checks.compare("slices", prefix + mode, packing.block_slices(sizes, block, mode))
