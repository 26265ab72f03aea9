"""DeBERTa's mask rule on rows of several lengths; a golden compares one length with its program."""

import jax.numpy as jnp
import numpy as np

from pretrain.corruption import masking
from pretrain.corruption.masking import TokenIds
from pretrain.ops import row_random
from pretrain.settings.model import MaskingSettings

SETTINGS = MaskingSettings("generator", "deberta", 0.15, "none", 1.0, 0.0, "non_special")
TOKENS = TokenIds(cls=0, pad=1, sep=2, unk=3, mask=4, vocab_size=20)


def _selected(row: list[int], length: int, draws: int = 400):
  rows = np.tile(np.asarray(row + [TOKENS.pad] * (length - len(row)), np.int32), (draws, 1))
  keys = row_random.step_row_keys(0, 0, jnp.arange(draws))
  return masking.select_and_mask(SETTINGS, keys, jnp.asarray(rows), TOKENS)


def test_one_of_each_six_ordinary_tokens_from_the_left_is_masked():
  # 15 tokens: round(2.25) = 2 masks, in the first and the second six ordinary tokens.
  made = _selected([0, 9, 9, 3, 9, 9, 9, 9, 2, 9, 9, 9, 9, 9, 9], 24)
  chosen = np.asarray(made.selected)
  first, second = [1, 2, 4, 5, 6, 7], [9, 10, 11, 12, 13, 14]
  assert (chosen[:, first].sum(1) == 1).all() and (chosen[:, second].sum(1) == 1).all()
  assert (chosen.sum(1) == 2).all()
  assert (chosen[:, first + second].mean(0) > 0.08).all()  # each is expected in a sixth of the draws
  assert (np.asarray(made.masked_ids)[chosen] == TOKENS.mask).all() and not np.asarray(made.overflow).any()
  # 18 tokens: round(2.7) = 3 masks; the third window has two ordinary tokens.
  chosen = np.asarray(_selected([0, *[9] * 14, 2, 2, 2], 24).selected)
  assert (chosen[:, 13:15].sum(1) == 1).all() and (chosen.sum(1) == 3).all()


def test_a_short_row_has_one_mask_and_a_long_one_at_most_eighty():
  # round(28.5) = 28, although in float32 0.15 * 190 is above 28.5.
  assert (np.asarray(_selected([0, *[9] * 188, 2], 256, draws=4).selected).sum(1) == 28).all()
  assert (np.asarray(_selected([0, 9, 2], 8).selected).sum(1) == 1).all()
  assert (np.asarray(_selected([0, *[9] * 638, 2], 640, draws=4).selected).sum(1) == 80).all()
  assert not np.asarray(_selected([0, 3, 2], 8).selected).any()  # there is nothing to choose
