"""Functions of tests compiled whole: called as they are, every operation compiles a program of its own."""

import functools
from collections.abc import Callable
from types import ModuleType

import jax
import numpy as np


@functools.cache
def _program(function: Callable, tree, static: tuple) -> Callable:
  def run(arrays):
    given = iter(arrays)
    leaves = [next(given) if leaf is jax.Array else leaf for leaf in static]
    arguments, options = jax.tree.unflatten(tree, leaves)
    return function(*arguments, **options)

  return jax.jit(run)


def one_program(function: Callable) -> Callable:
  """The function as one program for each set of arguments; those that are no arrays are constants of it."""

  @functools.wraps(function)
  def call(*arguments, **options):
    leaves, tree = jax.tree.flatten((arguments, options))
    is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
    static = tuple(jax.Array if array else leaf for leaf, array in zip(leaves, is_array))
    return _program(function, tree, static)([leaf for leaf, array in zip(leaves, is_array) if array])

  return call


class OneProgramEach:
  """A module whose functions are one program each."""

  def __init__(self, module: ModuleType):
    self._module = module

  def __getattr__(self, name: str) -> Callable:
    return one_program(getattr(self._module, name))
