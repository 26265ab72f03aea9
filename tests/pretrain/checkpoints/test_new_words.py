"""Rows of new words: the mean of their old pieces', in every table over the vocabulary."""

import numpy as np
import pytest

from data.errors import DataError
from data.vocabulary.extension import Extension
from pretrain.checkpoints import new_words

EXTENSION = Extension("", 5, {3: (0, 1), 6: (2, 4, 4)})  # a spare slot, and a row at the end


def params(rows=6, dtype=np.float32):
  rng = np.random.default_rng(0)

  def draw(*shape):
    return rng.standard_normal(shape).astype(dtype)

  return {
    "encoder": {"embeddings": {"token": {"embedding": draw(rows, 4)}, "norm": {"bias": draw(rows)}}},
    "generator": {"mlm_head": {"bias": draw(rows), "dense": {"bias": draw(rows)}}},
    "heads": {"mlm": {"bias": draw(rows)}, "clm": {"bias": draw(rows)}, "rtd": {"bias": draw(1)}},
  }


def test_a_new_row_is_the_mean_of_its_old_pieces():
  old = params()
  made = new_words.add_rows(old, EXTENSION, rows=8, where="here")
  for before, after in (
    (old["encoder"]["embeddings"]["token"]["embedding"], made["encoder"]["embeddings"]["token"]["embedding"]),
    (old["heads"]["mlm"]["bias"], made["heads"]["mlm"]["bias"]),
    (old["heads"]["clm"]["bias"], made["heads"]["clm"]["bias"]),
    (old["generator"]["mlm_head"]["bias"], made["generator"]["mlm_head"]["bias"]),
  ):
    assert after.shape == (8, *before.shape[1:]) and after.dtype == np.float32
    np.testing.assert_array_equal(after[[0, 1, 2, 4, 5]], before[[0, 1, 2, 4, 5]])
    np.testing.assert_allclose(after[3], (before[0] + before[1]) / 2, rtol=1e-6)
    np.testing.assert_allclose(after[6], (before[2] + 2 * before[4]) / 3, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(after[7], before.mean(0), rtol=1e-6, atol=1e-7)  # no id has it


def test_all_else_is_unchanged():
  old = params()
  made = new_words.add_rows(old, EXTENSION, rows=8, where="here")
  assert made["encoder"]["embeddings"]["norm"]["bias"] is old["encoder"]["embeddings"]["norm"]["bias"]
  assert made["generator"]["mlm_head"]["dense"]["bias"] is old["generator"]["mlm_head"]["dense"]["bias"]
  assert made["heads"]["rtd"]["bias"] is old["heads"]["rtd"]["bias"]
  np.testing.assert_array_equal(old["heads"]["mlm"]["bias"], params()["heads"]["mlm"]["bias"])


@pytest.mark.parametrize(("rows", "asked"), [(9, 8), (4, 8)])
def test_a_table_that_does_not_fit_is_refused(rows, asked):
  with pytest.raises(DataError, match=f"here: encoder.* has {rows} rows; expected 5 to {asked}\n  --config"):
    new_words.add_rows(params(rows), EXTENSION, rows=asked, where="here")
