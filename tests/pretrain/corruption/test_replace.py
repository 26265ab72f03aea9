"""Run: pytest tests/pretrain/corruption/test_replace.py"""

import jax
import numpy as np

from pretrain.corruption import masking, replace
from tests.pretrain.one_program import one_program
from tests.pretrain.small_recipe import TOKENS, cut, small_batch, small_recipe

SETTINGS = small_recipe({"corruption.kind": "random", "objectives.rtd.weight": 50.0}).masking


@one_program
def _replace(batch):
  chosen = masking.select_and_mask(SETTINGS, batch.row_keys, batch.ids, TOKENS)
  return chosen, replace.replace_at_random(batch.ids, batch.row_keys, chosen, TOKENS)


def _replaced(batch):
  return jax.device_get(_replace(batch))


def test_only_chosen_tokens_change_and_only_to_ordinary_tokens():
  batch = small_batch(256)
  chosen, replaced = _replaced(batch)
  selected, ids = np.asarray(chosen.selected), np.asarray(batch.ids)
  np.testing.assert_array_equal(replaced[~selected], ids[~selected])
  assert not np.isin(replaced[selected], TOKENS.special).any()
  # 92 ordinary tokens: 1 in 92 draws is the original.
  assert (replaced[selected] == ids[selected]).mean() < 0.04
  assert len(np.unique(replaced[selected])) > 80


def test_a_rows_tokens_do_not_depend_on_the_batch_around_it():
  batch = small_batch(4)
  _, whole = _replaced(batch)
  _, part = _replaced(cut(batch, 2, 4))
  np.testing.assert_array_equal(part, whole[2:])
  _, again = _replaced(batch)
  np.testing.assert_array_equal(again, whole)
  assert not np.array_equal(_replaced(small_batch(4, step=1))[1], whole)
