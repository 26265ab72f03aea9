"""Grows the parameters of a smaller model into those of a larger one, by tiling and by repeating layers.

Source: AnswerDotAI/ModernBERT, src/bert_layers/initialization.py (tile_weights_from_middle) and model.py.
"""

import re
from typing import Any

import jax
import numpy as np

from data.errors import DataError
from pretrain.mesh import trees

# Endings of paths, and the axis, from the last, that cannot grow.
_ROWS = re.compile(r"(^|/)((\w+)/embedding|(mlm|mlm_head|clm)/bias)$")
_HEADS = re.compile(r"(^|/)attention/((query|key|value)/(kernel|bias)|output/kernel)$")
_FIELD_OF_ROWS = {"token": "vocab_size", "position": "max_length"}


def grow(params: dict[str, Any], shapes: dict[str, Any], *, is_pre: bool = False) -> dict[str, Any]:
  """Returns host arrays `params` in the larger sizes of `shapes`, a tree with arrays or ShapeDtypeStructs.

  An axis of n numbers becomes one of N around its middle: new[i] = old[(i - (N - n) // 2) % n]. Of a layers,
  layer i of b copies layer round(i a / b); in a pre-norm encoder (`is_pre`) it reads the same norm, and the
  final norm stays the last. Nothing is rescaled. Arrays that have their size already, or that `shapes` lacks,
  are unchanged. All heads have one width, so whole heads are copied.

  DataError: a size is smaller; heads have another width, or an odd number of them is new; a table has another
  number of rows.
  """
  wanted = trees.by_path(shapes)
  grown = [
    _grown(path, np.asarray(leaf), wanted[path].shape, is_pre) if path in wanted else leaf
    for path, leaf in trees.by_path(params).items()
  ]
  return jax.tree.unflatten(jax.tree.structure(params), grown)


def _grown(path: str, array: np.ndarray, shape: tuple[int, ...], is_pre: bool) -> np.ndarray:
  if array.ndim != len(shape):
    return array
  saved = array.shape
  for axis, (size, wanted) in enumerate(zip(saved, shape, strict=True)):
    if size == wanted:
      continue
    is_stack = axis == 0 and not {"layers", "inner_norms"}.isdisjoint(path.split("/"))
    if not is_stack:
      _check_axis(path, axis, saved, shape)
    if size > wanted:
      raise DataError(f"{path} has shape {saved}, expected {tuple(shape)}; a model can only grow")
    rows = _layers(size, wanted) if is_stack else _tiles(size, wanted)
    if is_stack and is_pre and "mlp_norm" in path.split("/"):  # which the next layer's attention reads
      rows = [*(max(row - 1, 0) for row in rows[1:]), size - 1]
    array = np.take(array, rows, axis=axis)
  return array


def _tiles(size: int, wanted: int) -> np.ndarray:
  return (np.arange(wanted) - (wanted - size) // 2) % size


def _layers(size: int, wanted: int) -> list[int]:
  # Python's round, half to even; of at least twice as many layers the last would be layer `size`.
  return [min(round(number * size / wanted), size - 1) for number in range(wanted)]


def _check_axis(path: str, axis: int, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
  """Raises DataError if an axis with two sizes is one that cannot grow, or not by so much."""
  there, here = shape[axis], wanted[axis]
  if (table := _ROWS.search(path)) and axis == 0:
    field = _FIELD_OF_ROWS.get(table[3])
    way_out = f"\n  --config.model.{field}={there}" if field else ""
    raise DataError(f"{path} has {there:,} rows there, {here:,} here; expected the same{way_out}")
  if not (part := _HEADS.search(path)):
    return
  of_heads = len(shape) - (3 if part[2].startswith("output") else 2)
  width, wanted_width = shape[of_heads + 1], wanted[of_heads + 1]
  if width != wanted_width:
    heads, rest = divmod(wanted[of_heads] * wanted_width, width)
    way_out = "" if rest else f"\n  --config.model.num_heads={heads}"
    raise DataError(f"{path}: heads are {width} wide there, {wanted_width} here; expected one width{way_out}")
  if axis == of_heads and (here - there) % 2:
    raise DataError(
      f"{path}: {there} heads there, {here} here; expected an even number of new ones\n"
      f"  --config.model.num_heads={here + 1} --config.model.hidden_size={(here + 1) * width}"
    )
