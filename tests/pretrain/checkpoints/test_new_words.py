"""Rows of new words: the mean of their old pieces', in every table over the vocabulary."""

import numpy as np
import pytest

from data.errors import DataError
from data.vocabulary.extension import Extension
from pretrain.checkpoints import new_words
from pretrain.mesh import trees

EXTENSION = Extension("", 5, {3: (0, 1), 6: (2, 4, 4)})  # a spare slot, and a row at the end
OF_TOKENS = {
  "encoder/embeddings/token/embedding",
  "generator/mlm_head/bias",
  "heads/mlm/bias",
  "heads/clm/bias",
}


def _params(rows=6):
  draw = np.random.default_rng(0).standard_normal
  tables = {"token": {"embedding": draw((rows, 4))}, "norm": {"bias": draw(rows)}}
  heads = {"mlm": {"bias": draw(rows)}, "clm": {"bias": draw(rows)}, "rtd": {"bias": draw(1)}}
  generator = {"mlm_head": {"bias": draw(rows), "dense": {"bias": draw(rows)}}}
  tree = {"encoder": {"embeddings": tables}, "generator": generator, "heads": heads}
  return {name: _as_float32(part) for name, part in tree.items()}


def _as_float32(tree):
  if isinstance(tree, dict):
    return {name: _as_float32(part) for name, part in tree.items()}
  return tree.astype(np.float32)


def test_a_new_row_is_the_mean_of_its_old_pieces_and_all_else_is_unchanged():
  given = _params()
  old, new = trees.by_path(given), trees.by_path(new_words.add_rows(given, EXTENSION, rows=8, where="here"))
  assert {path for path in old if new[path] is not old[path]} == OF_TOKENS
  for path in OF_TOKENS:
    before, after = old[path], new[path]
    assert after.shape == (8, *before.shape[1:]) and after.dtype == np.float32
    np.testing.assert_array_equal(after[[0, 1, 2, 4, 5]], before[[0, 1, 2, 4, 5]])
    np.testing.assert_allclose(after[3], (before[0] + before[1]) / 2, rtol=1e-6)
    np.testing.assert_allclose(after[6], (before[2] + 2 * before[4]) / 3, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(after[7], before.mean(0), rtol=1e-6, atol=1e-7)  # no id has it
    np.testing.assert_array_equal(before, trees.by_path(_params())[path])
  for rows in (9, 4):  # asked: 8, and the vocabulary had 5
    with pytest.raises(DataError, match=f"here: encoder.* has {rows} rows; expected 5 to 8\n  --config"):
      new_words.add_rows(_params(rows), EXTENSION, rows=8, where="here")
  assert (
    len(trees.by_path(new_words.add_rows(_params(5), EXTENSION, rows=8, where=""))["heads/mlm/bias"]) == 8
  )
