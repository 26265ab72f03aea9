"""Run: pytest tests/pretrain/mesh/test_trees.py."""

import jax
import numpy as np
import optax

from pretrain.mesh import trees

TREE = {"b": {"kernel": np.ones((2, 3), np.float32)}, "a": np.zeros(4, np.int32)}


def test_leaves_are_named_by_path_in_the_order_of_jax():
  assert list(trees.by_path(TREE)) == ["a", "b/kernel"]
  assert trees.paths(TREE) == {"b": {"kernel": "b/kernel"}, "a": "a"}
  state = optax.adam(0.1).init(TREE)
  assert list(trees.by_path(state)) == ["0/count", "0/mu/a", "0/mu/b/kernel", "0/nu/a", "0/nu/b/kernel"]
  assert jax.tree.structure(trees.paths(state)) == jax.tree.structure(state)


def test_every_kind_of_difference_is_a_line():
  saved = {"b": {"kernel": np.ones((3, 2), np.float32)}, "a": np.zeros(4, np.int64), "c": np.zeros(1)}
  expected = TREE | {"d": np.zeros(1)}
  lines = [
    "a is int64, expected int32",
    "b/kernel has shape (3, 2), expected (2, 3)",
    "d is missing",
    "c is unexpected",
  ]
  assert trees.differences(expected, saved) == lines
  assert trees.differences(expected, saved, is_exact=False) == lines[:3]
  assert trees.differences(TREE, jax.eval_shape(lambda: TREE)) == []
  assert trees.first_lines(lines) == "; ".join(lines[:3]) + "; and 1 more"
