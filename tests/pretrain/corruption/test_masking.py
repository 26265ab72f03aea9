"""Run: pytest tests/pretrain/corruption/test_masking.py. Rates are counted on fixed draws of 100k tokens."""

import dataclasses

import jax
import numpy as np
import pytest

from pretrain.corruption import masking
from pretrain.corruption.masking import MaskingSettings, TokenIds
from pretrain.ops.draws import row_random
from tests.pretrain.one_program import OneProgramEach, one_program

keys_of, mask = one_program(row_random.step_row_keys), OneProgramEach(masking)

TOKENS = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=96, vocab_size=97)
COUNT = MaskingSettings(
  kind="mask",
  mask_rule="count",
  mask_rate=0.15,
  mask_special="all",
  mask_token_rate=1.0,
  random_token_rate=0.0,
  random_token_from="non_special",
)
BERNOULLI = dataclasses.replace(
  COUNT,
  mask_rule="bernoulli",
  mask_special="none",
  mask_token_rate=0.8,
  random_token_rate=0.1,
  random_token_from="all",
)
GOOGLE = dataclasses.replace(COUNT, mask_rule="electra_google", mask_special="none", mask_token_rate=0.85)
RULES = {"count": COUNT, "bernoulli": BERNOULLI, "electra_google": GOOGLE}
every_rule = pytest.mark.parametrize("settings", RULES.values(), ids=RULES.keys())

ROWS, LENGTH = 1_024, 101  # 103,424 tokens; 15 % of 101 is no whole number


def _ids(rows: int = ROWS, length: int = LENGTH) -> np.ndarray:
  ids = np.random.default_rng(0).integers(4, 96, (rows, length)).astype(np.int32)
  ids[:, 0] = TOKENS.cls
  ids[:, 10::20] = TOKENS.sep
  ids[:, 11::20] = TOKENS.unk
  return ids


def _keys(rows: int = ROWS, step: int = 0) -> jax.Array:
  return keys_of(0, np.asarray(step), np.arange(rows))


def _mask(settings: MaskingSettings, ids=None, keys=None) -> masking.Masking:
  ids = _ids() if ids is None else ids
  keys = _keys(len(ids)) if keys is None else keys
  return jax.tree.map(np.asarray, mask.select_and_mask(settings, keys, ids, TOKENS))


def _rate(settings: MaskingSettings, which) -> float:
  return float(_mask(settings).selected[which].mean())


# The rules.


def test_count_rule_takes_fifteen_per_cent_rounded_up_or_down_by_chance():
  found = _mask(COUNT)
  counts = found.selected.sum(axis=1)
  assert set(counts) == {15, 16}  # 0.15 x 101 = 15.15
  assert abs((counts == 16).mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / ROWS)
  assert abs(found.selected.mean() / 0.15 - 1) < 0.01
  np.testing.assert_array_equal(found.masked_ids, np.where(found.selected, TOKENS.mask, _ids()))


def test_count_rule_of_a_whole_number_never_rounds():
  found = _mask(COUNT, _ids(64, 20))
  np.testing.assert_array_equal(found.selected.sum(axis=1), 3)


def test_count_rule_chooses_every_position_alike():
  rates = _mask(COUNT).selected.mean(axis=0)
  assert np.all(np.abs(rates - 0.15) < 4.5 * np.sqrt(0.15 * 0.85 / ROWS))  # 101 positions at 4.5 sigma


def test_bernoulli_rule_chooses_independently_and_mixes_eighty_ten_ten():
  rows, ids = ROWS * 8, _ids(ROWS * 8, 112)
  found = _mask(BERNOULLI, ids)
  words = (ids != TOKENS.cls) & (ids != TOKENS.sep)
  assert abs(found.selected[words].mean() / 0.15 - 1) < 0.01
  counts, per_row = found.selected.sum(axis=1), words[0].sum()
  assert abs(counts.var() / (per_row * 0.15 * 0.85) - 1) < 4 * np.sqrt(2 / rows)  # a binomial's variance
  shown, original = found.masked_ids[found.selected], ids[found.selected]
  # A random token of 97 is the original in 1 of 97 draws, and [MASK] in another.
  rates = [(shown == TOKENS.mask).mean(), (shown == original).mean()]
  np.testing.assert_allclose(rates, [0.8 + 0.1 / 97, 0.1 + 0.1 / 97], rtol=0.02)
  assert np.all(found.masked_ids[~found.selected] == ids[~found.selected])


def test_google_rule_draws_with_replacement_and_leaves_fifteen_per_cent_unmasked():
  found = _mask(GOOGLE)
  slots = found.weights.sum(axis=1)
  np.testing.assert_array_equal(slots, 15)  # round(15.15)
  maskable = int((~np.isin(_ids()[0], [0, 1, 2, 96])).sum())
  distinct = maskable * (1 - (1 - 1 / maskable) ** 15)
  assert abs(found.selected.sum(axis=1).mean() / distinct - 1) < 0.01
  # Alone at its position, a slot is masked in 85 % of cases.
  alone = [
    row[np.searchsorted(np.sort(row), row, "right") - np.searchsorted(np.sort(row), row) == 1]
    for row in found.positions
  ]
  shown = np.concatenate([found.masked_ids[i][at] for i, at in enumerate(alone)])
  assert abs((shown == TOKENS.mask).mean() / 0.85 - 1) < 0.01


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_google_rule_masks_the_rate_it_is_given(rate):
  ids = _ids(8)
  found = _mask(dataclasses.replace(GOOGLE, mask_token_rate=rate), ids)
  expected = np.where(found.selected, TOKENS.mask, ids) if rate else ids
  np.testing.assert_array_equal(found.masked_ids, expected)
  assert found.selected.any()


def test_google_rule_takes_at_least_one_token_of_a_short_row_and_none_of_an_empty_one():
  ids = np.full((3, 20), TOKENS.pad, np.int32)
  ids[0, :3], ids[1, :2] = (0, 50, 2), (0, 2)
  found = _mask(GOOGLE, ids)
  np.testing.assert_array_equal(found.weights.sum(axis=1), [1, 0, 0])
  np.testing.assert_array_equal(np.flatnonzero(found.selected[0]), [1])


# Special tokens and padding.


@pytest.mark.parametrize(
  "mask_special, touched",
  [("all", ("cls", "sep", "unk")), ("sep_only", ("sep", "unk")), ("none", ("unk",))],
)
@pytest.mark.parametrize("rule", ["count", "bernoulli", "electra_google"])
def test_special_tokens_are_chosen_exactly_as_mask_special_says(rule, mask_special, touched):
  settings = dataclasses.replace(RULES[rule], mask_special=mask_special)
  ids = _ids()
  for name in ("cls", "sep", "unk"):
    rate = _rate(settings, ids == getattr(TOKENS, name))
    assert (rate > 0.08) == (name in touched)
    assert rate == 0 or name in touched


@every_rule
def test_padding_is_never_chosen_and_rows_of_padding_choose_nothing(settings):
  settings = dataclasses.replace(settings, mask_special="all")
  ids = _ids(16)
  ids[:, 60:] = ids[5] = TOKENS.pad
  found = _mask(settings, ids)
  assert not found.selected[ids == TOKENS.pad].any()
  assert not found.selected[5].any() and not found.weights[5].any()
  assert found.selected[:5].any(axis=1).all()


def test_random_tokens_are_never_special_unless_asked():
  words = row_random.key_words(_keys(4))
  plain = np.asarray(mask.random_tokens(words, (25_000,), TOKENS, special=False))
  assert set(np.unique(plain)) == set(range(97)) - set(TOKENS.special)
  counts = np.bincount(plain.ravel(), minlength=97)[4:96]
  assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 91 + 4 * np.sqrt(182)
  every = np.asarray(mask.random_tokens(words, (25_000,), TOKENS, special=True))
  assert set(np.unique(every)) == set(range(97))


# Slots, keys, batches.


@every_rule
def test_slots_name_the_chosen_positions(settings):
  found = _mask(settings, _ids(64))
  for row in range(64):
    used = found.positions[row][found.weights[row] > 0]
    assert set(used) == set(np.flatnonzero(found.selected[row]))
    assert np.all(found.positions[row][found.weights[row] == 0] == LENGTH)
  assert not found.overflow.any()


def test_capacities_are_the_documented_ones():
  assert masking.capacity(COUNT, 512) == 77
  assert masking.capacity(COUNT, 20) == 3
  assert masking.capacity(BERNOULLI, 256) == 80
  assert masking.capacity(BERNOULLI, 16) == 16
  assert masking.capacity(GOOGLE, 128) == 19
  assert masking.capacity(GOOGLE, 512) == 79


def test_overflowing_selections_are_neither_masked_nor_predicted_and_counted():
  ids = _ids(2, 20)
  selected = np.zeros((2, 20), bool)
  selected[0, 2:8] = True
  found = jax.tree.map(np.asarray, mask.masking_of(COUNT, _keys(2), ids, selected, TOKENS))
  np.testing.assert_array_equal(np.flatnonzero(found.selected[0]), [2, 3, 4])
  np.testing.assert_array_equal(found.masked_ids[0, 5:], ids[0, 5:])
  np.testing.assert_array_equal(found.overflow, [3, 0])
  np.testing.assert_array_equal(found.weights, [[1, 1, 1], [0, 0, 0]])


@every_rule
def test_same_key_same_masks_and_other_step_other_masks(settings):
  first, again, other = (_mask(settings, _ids(32), _keys(32, step)) for step in (0, 0, 1))
  jax.tree.map(np.testing.assert_array_equal, first, again)
  assert not np.array_equal(first.selected, other.selected)
  assert not np.array_equal(first.selected[0], first.selected[1])


# Rates that change during a run.

STAGES = ((0.0, 0.3), (0.8, 0.15))
of_rules = pytest.mark.parametrize("settings", [COUNT, BERNOULLI], ids=["count", "bernoulli"])


def _mask_at(settings: MaskingSettings, progress: float) -> masking.Masking:
  stage = masking.stage_of(settings, np.full(ROWS, progress, np.float32))
  return jax.tree.map(np.asarray, mask.select_and_mask(settings, _keys(), _ids(), TOKENS, stage))


@of_rules
@pytest.mark.parametrize(("progress", "rate"), [(0.0, 0.3), (0.799, 0.3), (0.8, 0.15), (1.0, 0.15)])
def test_a_stage_chooses_the_tokens_of_its_rate(settings, progress, rate):
  found = _mask_at(dataclasses.replace(settings, mask_rate=0.9, mask_rates=STAGES), progress)
  expected = _mask(dataclasses.replace(settings, mask_rate=rate))
  np.testing.assert_array_equal(found.selected, expected.selected)
  np.testing.assert_array_equal(found.masked_ids, expected.masked_ids)
  # Capacity is that of the largest rate; slots beyond the stage's count are unused.
  slots = masking.capacity(dataclasses.replace(settings, mask_rate=0.3), LENGTH)
  assert found.positions.shape == (ROWS, slots)
  np.testing.assert_array_equal(found.weights.sum(axis=1), expected.selected.sum(axis=1))
  assert (found.positions[found.weights == 0] == LENGTH).all()


@of_rules
def test_stages_of_one_rate_are_that_rate(settings):
  same = dataclasses.replace(settings, mask_rates=((0.0, settings.mask_rate), (0.5, settings.mask_rate)))
  for progress in (0.0, 0.5):
    jax.tree.map(np.testing.assert_array_equal, _mask_at(same, progress), _mask(settings))


@pytest.mark.parametrize("total", [10, 30, 1_000, 125_000, 999_990, 2_000_000])
def test_a_stage_begins_at_the_step_of_its_fraction(total):
  stages = dataclasses.replace(COUNT, mask_rates=((0.0, 0.3), (0.1, 0.2), (0.7, 0.15), (0.9, 0.1)))

  @jax.jit
  def found(steps):
    return masking.stage_of(stages, (steps / total).astype(np.float32))

  for number, tenths in ((1, 1), (2, 7), (3, 9)):
    first = total * tenths // 10
    np.testing.assert_array_equal(
      found(np.asarray([first - 1, first, first + 1])), [number - 1, number, number]
    )


def test_held_out_rows_have_a_rate_of_their_own():
  staged = dataclasses.replace(COUNT, mask_rates=STAGES)
  assert staged.in_evaluation is staged
  fixed = dataclasses.replace(staged, eval_mask_rate=0.05).in_evaluation
  assert fixed.rates == (0.05,) and masking.capacity(fixed, 512) == 26


# Whole words: tokens from 50 on continue a word.

WORDS = dataclasses.replace(TOKENS, word_starts=bytes(number < 50 or number == 96 for number in range(97)))
by_words = pytest.mark.parametrize(
  "settings",
  [dataclasses.replace(rule, whole_words=True) for rule in (COUNT, BERNOULLI)],
  ids=["count", "bernoulli"],
)


def _words(settings: MaskingSettings, ids: np.ndarray) -> masking.Masking:
  return jax.tree.map(np.asarray, mask.select_and_mask(settings, _keys(len(ids)), ids, WORDS))


def _heads(ids: np.ndarray) -> np.ndarray:
  """The first token of each token's word, one token after another."""
  heads = np.zeros_like(ids)
  for row, at in np.ndindex(ids.shape):
    before = at and ids[row, at - 1] not in (TOKENS.cls, TOKENS.sep, TOKENS.pad, TOKENS.mask)
    heads[row, at] = heads[row, at - 1] if before and 50 <= ids[row, at] < 96 else at
  return heads


def test_words_of_one_two_three_and_one_tokens_are_chosen_alike_and_whole():
  """By hand: starts 1 1 0 1 0 0 1 at rate 0.3 give floor(1.2 + u) words, so two in 20 % of the rows."""
  ids = np.tile(np.asarray([10, 11, 51, 12, 52, 53, 13], np.int32), (20_000, 1))
  chosen = _words(dataclasses.replace(COUNT, whole_words=True, mask_rate=0.3), ids).selected
  np.testing.assert_array_equal(chosen[:, [2, 4, 5]], chosen[:, [1, 3, 3]])
  words = chosen[:, [0, 1, 3, 6]]
  assert set(words.sum(axis=1)) == {1, 2}
  assert abs((words.sum(axis=1) == 2).mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 20_000)
  assert np.all(np.abs(words.mean(axis=0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 20_000))


@by_words
def test_masks_of_whole_words_have_the_rate_and_cut_no_word(settings):
  ids = _ids()
  ids[:, 90:] = TOKENS.pad
  ids[:, 30:33] = 60  # behind a token that has a special one before it in some columns
  found = _words(settings, ids)
  np.testing.assert_array_equal(found.selected, np.take_along_axis(found.selected, _heads(ids), axis=1))
  maskable = np.asarray(masking.maskable_tokens(settings, ids, TOKENS))
  assert not found.selected[~maskable].any() and not found.overflow.any()
  # 0.15 of the tokens, of words of up to about ten tokens.
  assert abs(found.selected[maskable].mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 * 3 / maskable.sum())


def test_a_word_does_not_continue_behind_a_special_token():
  ids = np.asarray([[0, 60, 61, 2, 62, 0, 63, 3, 64, 96, 65, 1, 1]], np.int32)
  heads = np.asarray(masking.word_heads(ids, WORDS))
  np.testing.assert_array_equal(heads, [[0, 1, 1, 3, 4, 5, 6, 7, 7, 9, 10, 11, 12]])  # [UNK] begins a word
  np.testing.assert_array_equal(heads, _heads(ids))


def test_all_tokens_of_a_word_become_masks_or_random_or_stay():
  settings = dataclasses.replace(BERNOULLI, whole_words=True, random_token_from="non_special")
  ids = np.tile(np.asarray([10, 51, 52, 53], np.int32), (4_000, 1))
  found = _words(settings, ids)
  chosen = found.masked_ids[found.selected[:, 0]]
  masked, kept = (chosen == TOKENS.mask).sum(axis=1), (chosen == ids[0]).sum(axis=1)
  assert set(masked) == {0, 4} and abs((masked == 4).mean() - 0.8) < 0.07
  assert abs((kept == 4).mean() - 0.1) < 0.06 and ((kept == 4) | (kept <= 1)).all()


def test_a_row_of_long_words_has_slots_for_six_deviations_and_counts_the_rest():
  settings = dataclasses.replace(COUNT, whole_words=True)
  assert masking.capacity(settings, 256) == masking.capacity(BERNOULLI, 256) == 80
  ids = np.full((64, 40), 60, np.int32)
  ids[:, 0] = 10
  found = _words(dataclasses.replace(settings, mask_rate=0.3), ids)
  slots = masking.capacity(dataclasses.replace(settings, mask_rate=0.3), 40)
  assert set(found.selected.sum(axis=1)) == {0, slots} and set(found.overflow) == {0, 40 - slots}


def test_whole_words_of_one_token_are_tokens():
  words = dataclasses.replace(TOKENS, word_starts=b"\1" * 97)
  settings = dataclasses.replace(COUNT, whole_words=True)
  found = jax.tree.map(np.asarray, mask.select_and_mask(settings, _keys(), _ids(), words))
  np.testing.assert_array_equal(found.selected, _mask(COUNT).selected)
  np.testing.assert_array_equal(found.masked_ids, _mask(COUNT).masked_ids)
