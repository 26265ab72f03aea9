"""Compares queries with all vectors of an array that may be larger than memory."""

import numpy as np

from pretrain.embed.dtypes import restored

_SCORES = 1 << 22  # numbers computed at once
_FEWEST, _MOST = 1 << 10, 1 << 16  # vectors read at once


def nearest(stored: np.ndarray, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
  """Finds the rows of `stored` with the largest inner products with each of the queries [n, width] float32.

  `stored` has vectors as `dtypes.compressed` made them, for example memory-mapped; it is read once.

  Returns:
    Rows [n, top] int64 and inner products [n, top] float32, the largest first; all rows, if there are
    fewer than `top`.
  """
  top, step = min(top, len(stored)), min(max(_SCORES // len(queries), _FEWEST), _MOST)
  products = np.full((len(queries), top), -np.inf, np.float32)
  rows = np.zeros((len(queries), top), np.int64)
  for start in range(0, len(stored), step):
    of_block = queries @ restored(stored[start : start + step]).T
    # Most blocks have no better row for most queries, so little is sorted.
    better = np.flatnonzero(of_block.max(axis=1) > products[:, -1])
    numbers = np.broadcast_to(np.arange(start, start + of_block.shape[1]), (len(better), of_block.shape[1]))
    joined = np.concatenate([products[better], of_block[better]], axis=1)
    chosen = _largest(joined, top)
    products[better] = np.take_along_axis(joined, chosen, axis=1)
    rows[better] = np.take_along_axis(np.concatenate([rows[better], numbers], axis=1), chosen, axis=1)
  return rows, products


def _largest(values: np.ndarray, top: int) -> np.ndarray:
  """Returns the places [n, top] of the largest values [n, m], the largest first."""
  places = np.argpartition(-values, top - 1, axis=1)[:, :top]
  order = np.argsort(-np.take_along_axis(values, places, axis=1), axis=1)
  return np.take_along_axis(places, order, axis=1)
