"""Gives a model the rows of new words, where a vocabulary extends that of its training."""

import re
from typing import Any

import jax
import numpy as np

from data.errors import DataError
from data.vocabulary.extension import Extension
from pretrain.mesh import trees

# Arrays with a row for each id: token tables, and the biases of heads that predict tokens.
_OF_TOKENS = re.compile(r"(.*/)?((token|table)/embedding|(mlm|mlm_head|clm)/bias)")


def add_rows(params: dict[str, Any], extension: Extension, *, rows: int, where: str) -> dict[str, Any]:
  """Returns parameters whose token tables and output biases have `rows` rows, and rows for the new words.

  The row of a new word is the mean of its old pieces' rows, computed in float32. An added row without an id
  is the mean of all old rows. All other parameters are unchanged. DataError: a table has more rows than
  `rows`, or fewer than the old vocabulary has ids.
  """
  paths, structure = trees.by_path(params), jax.tree.structure(params)
  made = []
  for path, leaf in paths.items():
    if not _OF_TOKENS.fullmatch(path):
      made.append(leaf)
      continue
    old = np.asarray(leaf)
    if not extension.size <= len(old) <= rows:
      raise DataError(
        f"{where}: {path} has {len(old):,} rows; expected {extension.size:,} to {rows:,}\n"
        f"  --config.model.vocab_size={len(old)}"
      )
    wide = old.astype(np.float32)
    new = np.concatenate([old, np.repeat(wide.mean(0, keepdims=True), rows - len(old), 0).astype(old.dtype)])
    for number, pieces in extension.pieces.items():
      new[number] = wide[list(pieces)].mean(0)
    made.append(new)
  return jax.tree.unflatten(structure, made)
