"""Triton kernels as operations of JAX programs, on NVIDIA GPUs: those of `ops/*_kernels.py`."""

import importlib
import importlib.util
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax

PACKAGES = ("jax_triton", "triton")


class Launch(NamedTuple):
  """How many programs run a kernel, and how each of them works."""

  grid: int  # programs
  warps: int  # of 32 threads, of a program
  stages: int = 1  # tiles whose arrays are in shared memory at once: one is read while one is computed
  aliases: tuple[tuple[int, int], ...] = ()  # (array, result) that are one: the kernel adds to what is there


def is_installed() -> bool:
  """Whether what compiles the kernels can be imported."""
  return all(importlib.util.find_spec(name) for name in PACKAGES)


def call(
  kernel: str, arrays: Sequence[jax.Array], results: Sequence, launch: Launch, constants: dict
) -> Sequence[jax.Array]:
  """What a kernel, 'module.function' of `pretrain.ops`, writes: arrays like `results`.

  Its arguments are `arrays`, the results and, as compile-time constants, `constants`. Arrays lie in row-major
  order. Under `jax.vmap` one launch follows the other.
  """

  @jax.custom_batching.sequential_vmap
  def one(*arrays):
    return run(kernel, arrays, results, launch, constants)

  return one(*arrays)


def function(kernel: str):
  """The Triton function of a name in this folder, 'vocab.lookup_triton_kernels.add_rows'."""
  module, _, name = kernel.rpartition(".")
  return getattr(importlib.import_module(f"pretrain.ops.{module}"), name)


def run(
  kernel: str, arrays: Sequence, results: Sequence, launch: Launch, constants: dict
) -> Sequence[jax.Array]:
  """`call` without `jax.vmap`; tests put an interpreter in its place."""
  import jax_triton

  return jax_triton.triton_call(
    *arrays,
    kernel=function(kernel),
    out_shape=list(results),
    grid=(launch.grid,),
    input_output_aliases=dict(launch.aliases),
    num_warps=launch.warps,
    num_stages=launch.stages,
    compute_capability=_planned_capability(),
    name=kernel.rpartition(".")[2],
    **constants,
  )


def _planned_capability() -> int | None:
  """The compute capability that a program is compiled for without a GPU; None: that of the GPU here."""
  if jax.default_backend() == "gpu":
    return None
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return 90 if device is not None and re.search(r"\bH\d00\b", device.device_kind) else 80
