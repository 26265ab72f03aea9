"""The Triton kernels on a CPU, by Triton's own interpreter in place of a launch on a GPU.

A process of its own interprets: what Triton's functions are, is decided where it is first imported.
"""

import concurrent.futures
import functools
import multiprocessing
import os
from collections.abc import Sequence
from unittest import mock

import numpy as np

from pretrain.ops.platforms import Launch

_GUARD = 1024  # numbers on each side of an array, which on a GPU would be another's


@functools.cache
def _process() -> concurrent.futures.Executor:
  pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
  with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
    pool.submit(os.getpid).result()  # starts it
  return pool


def _interpret(
  kernel: str, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray], programs: int, constants: dict
) -> list[np.ndarray]:
  import torch

  from pretrain.ops import platforms

  guarded = [np.pad(array.ravel(), _GUARD, constant_values=1) for array in (*arrays, *results)]
  tensors = [torch.from_numpy(array)[_GUARD:-_GUARD] for array in guarded]
  platforms.triton_function(kernel)[(programs,)](*tensors, **constants)
  for number, array in enumerate(guarded):
    outside = np.concatenate([array[:_GUARD], array[-_GUARD:]])
    assert np.all(outside == 1), f"{kernel} wrote outside of its array {number}"
  found = guarded[len(arrays) :]
  return [array[_GUARD:-_GUARD].reshape(like.shape) for array, like in zip(found, results, strict=True)]


def run(kernel: str, arrays: Sequence, results: Sequence, launch: Launch, constants: dict) -> list:
  """Stands in for `platforms.run_triton`."""
  import jax

  def on_host(*arrays):
    arrays = [np.asarray(array) for array in arrays]
    empty = [np.full(like.shape, 7, like.dtype) for like in results]  # what no kernel wrote is not 0
    for array, result in launch.aliases:
      empty[result] = arrays[array]
      arrays[array] = np.full_like(arrays[array], 7)  # which the kernel must not read
    return _process().submit(_interpret, kernel, arrays, empty, launch.grid, constants).result()

  return jax.pure_callback(on_host, list(results), *arrays)
