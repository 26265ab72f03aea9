"""Names the leaves of trees by path, such as 'encoder/trunk/layers/up/kernel', here and in files."""

import hashlib
from typing import Any

import jax
import numpy as np

ArrayTree = Any


def by_path(tree: ArrayTree) -> dict[str, Any]:
  """Returns {path: leaf}, in the order of `jax.tree.leaves`."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def paths(tree: ArrayTree) -> ArrayTree:
  """Returns the same tree with every leaf replaced by its path."""
  return jax.tree.unflatten(jax.tree.structure(tree), list(by_path(tree)))


def digest(tree: ArrayTree) -> str:
  """Returns the sha256 over the paths and values of a tree of host arrays, in hexadecimal."""
  hashed = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    hashed.update(jax.tree_util.keystr(path).encode())  # must not change, because stored digests depend on it
    hashed.update(np.ascontiguousarray(leaf).tobytes())
  return hashed.hexdigest()


def differences(expected: ArrayTree, saved: ArrayTree, *, is_exact: bool = True) -> list[str]:
  """Returns a line for each array of two trees that differs in path, shape or dtype; [] if none does.

  With `is_exact`, arrays that only `saved` has are reported too. `expected` may have shapes and dtypes only.
  """
  wanted, there, lines = by_path(expected), by_path(saved), []
  for path, leaf in wanted.items():
    array = there.get(path)
    if array is None:
      lines.append(f"{path} is missing")
    elif tuple(array.shape) != tuple(leaf.shape):
      lines.append(f"{path} has shape {tuple(array.shape)}, expected {tuple(leaf.shape)}")
    elif array.dtype != leaf.dtype:
      lines.append(f"{path} is {array.dtype}, expected {leaf.dtype}")
  return lines + [f"{path} is unexpected" for path in there if is_exact and path not in wanted]


def first_lines(lines: list[str]) -> str:
  """Joins the first three lines with '; ' and, if there are more, appends their number."""
  return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")
