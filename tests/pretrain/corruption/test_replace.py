"""Run: pytest tests/pretrain/corruption/test_replace.py"""

import numpy as np

from pretrain.corruption import masking, replace
from tests.pretrain.one_program import one_program
from tests.pretrain.small_recipe import TOKENS, cut, small_batch, small_recipe

SETTINGS = small_recipe({"corruption.kind": "random", "objectives.rtd.weight": 50.0}).masking


@one_program
def _replaced(batch):
  chosen = masking.select_and_mask(SETTINGS, batch.row_keys, batch.ids, TOKENS)
  return chosen.selected, replace.replace_at_random(batch.ids, batch.row_keys, chosen, TOKENS)


def test_only_chosen_tokens_change_to_ordinary_tokens_that_the_rows_key_decides():
  batch = small_batch(256)
  selected, replaced = map(np.asarray, _replaced(batch))
  ids = np.asarray(batch.ids)
  np.testing.assert_array_equal(replaced[~selected], ids[~selected])
  assert not np.isin(replaced[selected], TOKENS.special).any()
  # 92 ordinary tokens: 1 in 92 draws is the original.
  assert (replaced[selected] == ids[selected]).mean() < 0.04
  assert len(np.unique(replaced[selected])) > 80
  np.testing.assert_array_equal(_replaced(cut(batch, 2, 4))[1], replaced[2:4])
  other = np.asarray(_replaced(small_batch(256, step=1))[1])
  assert not np.array_equal(other, replaced)
