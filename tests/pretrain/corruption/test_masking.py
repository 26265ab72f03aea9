"""Run: pytest tests/pretrain/corruption/test_masking.py. Rates are counted on fixed draws of 100k tokens."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data import vocabulary
from data.errors import ConfigError
from pretrain.checkpoints.saved_model import open_run
from pretrain.corruption import masking
from pretrain.corruption.masking import TokenIds
from pretrain.ops import row_random
from pretrain.settings.model import MaskingSettings
from tests.pretrain.one_program import OneProgramEach, one_program
from tests.pretrain.small_run import metric_lines, run_training, small_config

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

ROWS, LENGTH = 1_024, 101  # 103,424 tokens; 15 % of 101 is no whole number


def _ids(rows: int = ROWS, length: int = LENGTH) -> np.ndarray:
  ids = np.random.default_rng(0).integers(4, 96, (rows, length)).astype(np.int32)
  ids[:, 0] = TOKENS.cls
  ids[:, 10::20] = TOKENS.sep
  ids[:, 11::20] = TOKENS.unk
  ids[:, 12::20] = TOKENS.mask  # a text may hold one
  return ids


def _keys(rows: int = ROWS, step: int = 0) -> jax.Array:
  return keys_of(0, np.asarray(step), np.arange(rows))


def _mask(settings: MaskingSettings, ids=None, *, step: int = 0, tokens=TOKENS) -> masking.Masking:
  ids = _ids() if ids is None else ids
  return jax.tree.map(np.asarray, mask.select_and_mask(settings, _keys(len(ids), step), ids, tokens))


# The rules.


def test_count_rule_takes_fifteen_per_cent_rounded_up_or_down_by_chance_at_any_position():
  found = _mask(COUNT)
  counts = found.selected.sum(axis=1)
  assert set(counts) == {15, 16}  # 0.15 x 101 = 15.15
  assert abs((counts == 16).mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / ROWS)
  assert abs(found.selected.mean() / 0.15 - 1) < 0.01
  rates = found.selected.mean(axis=0)
  assert np.all(np.abs(rates - 0.15) < 4.5 * np.sqrt(0.15 * 0.85 / ROWS))  # 101 positions at 4.5 sigma
  np.testing.assert_array_equal(found.masked_ids, np.where(found.selected, TOKENS.mask, _ids()))
  np.testing.assert_array_equal(_mask(COUNT, _ids(64, 20)).selected.sum(axis=1), 3)  # a whole number


def test_bernoulli_rule_chooses_independently_and_mixes_eighty_ten_ten():
  rows, ids = ROWS * 8, _ids(ROWS * 8, 112)
  found = _mask(BERNOULLI, ids)
  words = ~np.isin(ids, [TOKENS.cls, TOKENS.sep, TOKENS.mask])
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
  np.testing.assert_array_equal(found.weights.sum(axis=1), 15)  # round(15.15)
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
  for rate in (0.0, 1.0):
    ids = _ids(8)
    found = _mask(dataclasses.replace(GOOGLE, mask_token_rate=rate), ids)
    np.testing.assert_array_equal(found.masked_ids, np.where(found.selected & (rate > 0), TOKENS.mask, ids))
    assert found.selected.any()


def test_google_rule_counts_the_tokens_of_a_row_and_takes_at_least_one_if_one_may_be_chosen():
  ids = np.full((4, 60), TOKENS.pad, np.int32)
  ids[0, :3], ids[1, :2], ids[3, :50] = (0, 50, 2), (0, 2), 7
  found = _mask(GOOGLE, ids)
  np.testing.assert_array_equal(found.weights.sum(axis=1), [1, 0, 0, 8])  # round(7.5), of nine slots
  np.testing.assert_array_equal(np.flatnonzero(found.selected[0]), [1])


# Special tokens and padding.


def test_special_tokens_are_chosen_exactly_as_mask_special_says(subtests):
  touched = {"all": {"cls", "sep", "unk", "mask"}, "sep_only": {"sep", "unk", "mask"}, "none": {"unk"}}
  ids = _ids()
  for rule, settings in RULES.items():
    for mask_special, names in touched.items():
      with subtests.test(f"{rule} {mask_special}"):
        selected = _mask(dataclasses.replace(settings, mask_special=mask_special)).selected
        rates = {name: selected[ids == getattr(TOKENS, name)].mean() for name in touched["all"]}
        assert {name for name, rate in rates.items() if rate} == names
        assert all(rates[name] > 0.08 for name in names)


def test_padding_is_never_chosen_and_slots_name_the_chosen_positions(subtests):
  ids = _ids(64)
  ids[:, 60:] = ids[5] = TOKENS.pad
  for rule, settings in RULES.items():
    with subtests.test(rule):
      found = _mask(dataclasses.replace(settings, mask_special="all"), ids)
      assert not found.selected[ids == TOKENS.pad].any() and not found.weights[5].any()
      assert found.selected[:5].any(axis=1).all()
      for row in range(64):
        used = found.positions[row][found.weights[row] > 0]
        assert set(used) == set(np.flatnonzero(found.selected[row]))
        assert np.all(found.positions[row][found.weights[row] == 0] == LENGTH)
      assert not found.overflow.any()


def test_random_tokens_are_never_special_unless_asked():
  words = row_random.key_words(_keys(4))
  plain = np.asarray(mask.random_tokens(words, (25_000,), TOKENS, special=False))
  assert set(np.unique(plain)) == set(range(97)) - set(TOKENS.special)
  counts = np.bincount(plain.ravel(), minlength=97)[4:96]
  assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 91 + 4 * np.sqrt(182)
  every = np.asarray(mask.random_tokens(words, (25_000,), TOKENS, special=True))
  assert set(np.unique(every)) == set(range(97))


@one_program
def _replaced(ids, rows, step):
  keys = row_random.step_row_keys(0, step, rows)
  chosen = masking.select_and_mask(COUNT, keys, ids, TOKENS)
  return chosen.selected, masking.replace_at_random(ids, keys, chosen, TOKENS)


def test_replacements_are_ordinary_tokens_at_chosen_positions_that_the_rows_key_decides():
  ids, rows, step = _ids(256, 20), np.arange(256), np.asarray(0)
  selected, replaced = map(np.asarray, _replaced(ids, rows, step))
  np.testing.assert_array_equal(replaced[~selected], ids[~selected])
  assert not np.isin(replaced[selected], TOKENS.special).any()
  # 92 ordinary tokens: 1 in 92 draws is the original.
  assert (replaced[selected] == ids[selected]).mean() < 0.04
  assert len(np.unique(replaced[selected])) > 80
  assert np.mean([len({*row[at]}) == 3 for row, at in zip(replaced, selected)]) > 0.9  # each of its own
  np.testing.assert_array_equal(_replaced(ids[2:4], rows[2:4], step)[1], replaced[2:4])
  assert not np.array_equal(_replaced(ids, rows, step + 1)[1], replaced)


# Slots, keys, batches.


def test_capacities_are_the_documented_ones():
  words = dataclasses.replace(COUNT, whole_words=True)
  sizes = {
    "count": (COUNT, {512: 77, 20: 3}),
    "bernoulli": (BERNOULLI, {256: 80, 16: 16}),
    "google": (GOOGLE, {128: 19, 512: 79, 3: 1}),
    "whole words": (words, {256: 80}),
    "stages": (dataclasses.replace(COUNT, mask_rates=((0.0, 0.1), (0.5, 0.3))), {20: 6}),
  }
  found = {
    name: {length: masking.capacity(settings, length) for length in lengths}
    for name, (settings, lengths) in sizes.items()
  }
  assert found == {name: lengths for name, (_, lengths) in sizes.items()}


def test_overflowing_selections_are_neither_masked_nor_predicted_and_counted():
  ids = _ids(2, 20)
  selected = np.zeros((2, 20), bool)
  selected[0, 2:8] = True
  found = jax.tree.map(np.asarray, mask.masking_of(COUNT, _keys(2), ids, selected, TOKENS))
  np.testing.assert_array_equal(np.flatnonzero(found.selected[0]), [2, 3, 4])
  np.testing.assert_array_equal(found.masked_ids[0, 5:], ids[0, 5:])
  np.testing.assert_array_equal(found.overflow, [3, 0])
  np.testing.assert_array_equal(found.weights, [[1, 1, 1], [0, 0, 0]])


# Rates that change during a run.


def test_a_stage_chooses_the_tokens_of_its_rate_in_slots_for_the_largest(subtests):
  staged = {"mask_rate": 0.9, "mask_rates": ((0.0, 0.3), (0.8, 0.15))}
  keys, ids = _keys(), _ids()
  for rule in ("count", "bernoulli"):
    settings, slots = dataclasses.replace(RULES[rule], **staged), {"count": 31, "bernoulli": 64}[rule]
    for progress, rate in ((0.0, 0.3), (0.799, 0.3), (0.8, 0.15), (1.0, 0.15)):
      with subtests.test(f"{rule} {progress}"):
        stage = masking.stage_of(settings, np.full(ROWS, progress, np.float32))
        found = jax.tree.map(np.asarray, mask.select_and_mask(settings, keys, ids, TOKENS, stage))
        expected = _mask(dataclasses.replace(RULES[rule], mask_rate=rate))
        np.testing.assert_array_equal(found.selected, expected.selected)
        np.testing.assert_array_equal(found.masked_ids, expected.masked_ids)
        assert found.positions.shape == (ROWS, slots)
        np.testing.assert_array_equal(found.weights.sum(axis=1), expected.selected.sum(axis=1))
        assert (found.positions[found.weights == 0] == LENGTH).all()


def test_a_stage_begins_at_the_step_of_its_fraction(subtests):
  stages = dataclasses.replace(COUNT, mask_rates=((0.0, 0.3), (0.1, 0.2), (0.7, 0.15), (0.9, 0.1)))
  found = jax.jit(lambda steps, total: masking.stage_of(stages, steps / total))
  for total in (10, 30, 1_000, 125_000, 999_990, 2_000_000):
    for number, tenths in ((1, 1), (2, 7), (3, 9)):
      with subtests.test(f"{tenths} tenths of {total}"):
        first = total * tenths // 10
        steps = np.float32([first - 1, first, first + 1])
        np.testing.assert_array_equal(found(steps, np.float32(total)), [number - 1, number, number])


def test_held_out_rows_have_a_rate_of_their_own():
  staged = dataclasses.replace(COUNT, mask_rates=((0.0, 0.3), (0.8, 0.15)))
  assert staged.in_evaluation is staged
  fixed = dataclasses.replace(staged, eval_mask_rate=0.05).in_evaluation
  assert fixed.rates == (0.05,) and masking.capacity(fixed, 512) == 26


# Whole words: tokens from 50 on continue a word.

WORDS = dataclasses.replace(TOKENS, word_starts=bytes(number < 50 or number == 96 for number in range(97)))


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
  settings = dataclasses.replace(COUNT, whole_words=True, mask_rate=0.3)
  chosen = _mask(settings, ids, tokens=WORDS).selected
  np.testing.assert_array_equal(chosen[:, [2, 4, 5]], chosen[:, [1, 3, 3]])
  words = chosen[:, [0, 1, 3, 6]]
  assert set(words.sum(axis=1)) == {1, 2}
  assert abs((words.sum(axis=1) == 2).mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 20_000)
  assert np.all(np.abs(words.mean(axis=0) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 20_000))


def test_masks_of_whole_words_have_the_rate_and_cut_no_word(subtests):
  ids = _ids()
  ids[:, 90:] = TOKENS.pad
  ids[:, 30:33] = 60  # behind a token that has a special one before it in some columns
  heads = _heads(ids)
  for rule in ("count", "bernoulli"):
    with subtests.test(rule):
      settings = dataclasses.replace(RULES[rule], whole_words=True)
      found = _mask(settings, ids, tokens=WORDS)
      np.testing.assert_array_equal(found.selected, np.take_along_axis(found.selected, heads, axis=1))
      maskable = np.asarray(masking.maskable_tokens(settings, ids, TOKENS))
      assert not found.selected[~maskable].any() and not found.overflow.any()
      # 0.15 of the tokens, of words of up to about ten tokens.
      assert abs(found.selected[maskable].mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 * 3 / maskable.sum())


def test_a_word_does_not_continue_behind_a_special_token():
  ids = np.asarray([[0, 60, 61, 2, 62, 0, 63, 3, 64, 96, 65, 1, 1]], np.int32)
  heads = np.asarray(masking.word_heads(ids, WORDS))
  np.testing.assert_array_equal(heads, [[0, 1, 1, 3, 4, 5, 6, 7, 7, 9, 10, 11, 12]])  # [UNK] begins a word


def test_all_tokens_of_a_word_become_masks_or_random_or_stay():
  settings = dataclasses.replace(BERNOULLI, whole_words=True, random_token_from="non_special")
  ids = np.tile(np.asarray([10, 51, 52, 53], np.int32), (4_000, 1))
  found = _mask(settings, ids, tokens=WORDS)
  chosen = found.masked_ids[found.selected[:, 0]]
  masked, kept = (chosen == TOKENS.mask).sum(axis=1), (chosen == ids[0]).sum(axis=1)
  assert set(masked) == {0, 4} and abs((masked == 4).mean() - 0.8) < 0.07
  assert abs((kept == 4).mean() - 0.1) < 0.06 and ((kept == 4) | (kept <= 1)).all()


def test_a_row_of_long_words_has_slots_for_six_deviations_and_counts_the_rest():
  ids = np.full((64, 40), 60, np.int32)
  ids[:, 0] = 10
  settings = dataclasses.replace(COUNT, whole_words=True, mask_rate=0.3)
  found = _mask(settings, ids, tokens=WORDS)
  slots = masking.capacity(settings, 40)
  assert set(found.selected.sum(axis=1)) == {0, slots} and set(found.overflow) == {0, 40 - slots}


# DeBERTa's rule on rows of several lengths; a golden compares one length with its program.

DEBERTA = MaskingSettings("generator", "deberta", 0.15, "none", 1.0, 0.0, "non_special")
FEW_TOKENS = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=20)


def _selected(row: list[int], length: int, draws: int = 400):
  rows = np.tile(np.asarray(row + [FEW_TOKENS.pad] * (length - len(row)), np.int32), (draws, 1))
  keys = row_random.step_row_keys(0, 0, jnp.arange(draws))
  return masking.select_and_mask(DEBERTA, keys, jnp.asarray(rows), FEW_TOKENS)


def test_one_of_each_six_ordinary_tokens_from_the_left_is_masked():
  # 15 tokens: round(2.25) = 2 masks, in the first and the second six ordinary tokens.
  made = _selected([0, 9, 9, 3, 9, 9, 9, 9, 2, 9, 9, 9, 9, 9, 9], 24)
  chosen = np.asarray(made.selected)
  first, second = [1, 2, 4, 5, 6, 7], [9, 10, 11, 12, 13, 14]
  assert (chosen[:, first].sum(1) == 1).all() and (chosen[:, second].sum(1) == 1).all()
  assert (chosen.sum(1) == 2).all()
  assert (chosen[:, first + second].mean(0) > 0.08).all()  # each is expected in a sixth of the draws
  assert (np.asarray(made.masked_ids)[chosen] == FEW_TOKENS.mask).all() and not np.asarray(
    made.overflow
  ).any()
  # 18 tokens: round(2.7) = 3 masks; the third window has two ordinary tokens.
  chosen = np.asarray(_selected([0, *[9] * 14, 2, 2, 2], 24).selected)
  assert (chosen[:, 13:15].sum(1) == 1).all() and (chosen.sum(1) == 3).all()


def test_a_short_row_has_one_mask_and_a_long_one_at_most_eighty():
  # round(28.5) = 28, although in float32 0.15 * 190 is above 28.5.
  assert (np.asarray(_selected([0, *[9] * 188, 2], 256, draws=4).selected).sum(1) == 28).all()
  assert (np.asarray(_selected([0, 9, 2], 8).selected).sum(1) == 1).all()
  assert (np.asarray(_selected([0, *[9] * 638, 2], 640, draws=4).selected).sum(1) == 80).all()
  assert not np.asarray(_selected([0, 3, 2], 8).selected).any()  # there is nothing to choose


# Whole-word masks from the config to the masks of a run: its vocabulary, training and held-out rows.


FIELDS = {"corruption.whole_words": True, "train.total_steps": 2, "train.log_every": 1, "train.eval_every": 1}


def _cuts(masked, ids: np.ndarray, words: vocabulary.Vocabulary) -> int:
  """The number of words that are masked in part, by the text of the pieces."""
  selected, special = np.asarray(masked.corrupted.masking.selected), {*vars(words.special_ids).values()}
  cuts = 0
  for row, at in np.argwhere(np.ones_like(ids)):
    piece, before = words.piece(ids[row, at]), ids[row, at - 1]
    if at and not piece.startswith("▁") and not {ids[row, at], before} & special:
      cuts += selected[row, at] != selected[row, at - 1]
  return cuts


def test_a_run_masks_whole_words_of_training_and_held_out_rows(small_records, tmp_path):
  assert run_training(small_config("mlm", small_records, FIELDS), tmp_path) == 0
  opened = open_run(tmp_path, rows=8)
  run, words, ids = opened.run, opened.encoder.vocabulary, opened.heldout.rows(0, 8)
  held_out = run.eval_batch_of(ids, 0, 0.0)
  assert np.asarray(held_out.corrupted.masking.selected).sum() > 8
  assert _cuts(held_out, ids, words) == _cuts(run.batch_of(ids, 1), ids, words) == 0
  apart = dataclasses.replace(run.recipe.masking, whole_words=False)
  by_tokens = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, masking=apart))
  assert _cuts(by_tokens.batch_of(ids, 1), ids, words) > 8
  rates = [line["train/mask_rate"] for line in metric_lines(tmp_path) if "train/mask_rate" in line]
  assert len(rates) == 2 and all(0.05 < rate < 0.3 for rate in rates)


def test_a_vocabulary_without_marks_is_refused_before_anything_is_compiled(small_records, tmp_path):
  with (
    mock.patch.object(vocabulary.Vocabulary, "word_starts", b""),
    mock.patch.object(vocabulary, "load_cached", vocabulary.load),
    pytest.raises(ConfigError, match=r"--config\.corruption\.whole_words=False"),
  ):
    run_training(small_config("mlm", small_records, FIELDS), tmp_path)
