"""The Triton kernels on a CPU, by Triton's own interpreter in place of a launch on a GPU."""

import functools
import importlib.util
import os
import threading
from collections.abc import Sequence
from unittest import mock

import jax
import numpy as np
import torch

_INTERPRETER = threading.Lock()  # it has one grid at a time; devices of a mesh call it at once


@functools.cache
def _kernels():
  """A copy of `attention_triton_kernels`, defined while the interpreter is asked for."""
  real = importlib.util.find_spec("pretrain.ops.attention_triton_kernels")
  copy = importlib.util.module_from_spec(real)
  with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
    real.loader.exec_module(copy)
  return copy


def _tensor(array: np.ndarray) -> torch.Tensor:
  array = np.asarray(array)
  if array.dtype.name == "bfloat16":
    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
  return torch.from_numpy(array.copy())


def _array(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
  return tensor.view(torch.int16).numpy().view(dtype) if dtype.name == "bfloat16" else tensor.numpy()


def run(kernel: str, arrays: Sequence, results: Sequence, grid: tuple[int, int], constants: dict) -> list:
  """Stands in for `attention_triton.run`."""

  def on_host(*arrays):
    tensors = [_tensor(array) for array in arrays]
    found = [_tensor(np.zeros(like.shape, like.dtype)) for like in results]
    with _INTERPRETER, mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
      getattr(_kernels(), kernel)[grid](*tensors, *found, **constants)
    return [_array(tensor, like.dtype) for tensor, like in zip(found, results)]

  return jax.pure_callback(on_host, list(results), *arrays)
