"""The platform of a program, and Triton kernels, of `ops/**/*_kernels.py`, as its operations."""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax

from pretrain.mesh.sharding import automatic_axes

TRITON_PACKAGES = ("jax_triton", "triton")


def platform() -> str:
  """Returns 'cpu', 'tpu' or 'gpu': the platform of the current mesh, or else JAX's default."""
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return jax.default_backend() if device is None else device.platform


def takes_triton() -> bool:
  """Returns whether Triton kernels can run here: on NVIDIA GPUs, with no array left to the partitioner."""
  return platform() == "gpu" and not automatic_axes() and has_triton()


def device_kind() -> str:
  """Returns the kind of the devices of the current mesh, or else of JAX's first device."""
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return jax.devices()[0].device_kind if device is None else device.device_kind


class Launch(NamedTuple):
  """The launch settings of a Triton kernel: its number of programs, and their resources."""

  grid: int  # programs
  warps: int  # of 32 threads each, in a program
  stages: int = 1  # tiles in shared memory at once: one is read while another is computed
  # (array, result) in the same memory: the kernel changes the array, and reads it as the result alone.
  aliases: tuple[tuple[int, int], ...] = ()


def has_triton() -> bool:
  """Returns whether the packages that compile the kernels are installed."""
  return all(importlib.util.find_spec(name) for name in TRITON_PACKAGES)


def call_triton(
  kernel: str, arrays: Sequence[jax.Array], results: Sequence, launch: Launch, constants: dict
) -> Sequence[jax.Array]:
  """Runs a kernel, 'module.function' of `pretrain.ops`; returns its results, arrays like `results`.

  The kernel's arguments are `arrays`, the results and, as compile-time constants, `constants`. Arrays are
  row-major. `jax.vmap` launches it once for each element.
  """

  @jax.custom_batching.sequential_vmap
  def one(*arrays):
    return run_triton(kernel, arrays, results, launch, constants)

  return one(*arrays)


def triton_function(kernel: str):
  """Returns the Triton function of a name such as 'triton_kernels.norm_forward'."""
  module, _, name = kernel.rpartition(".")
  return getattr(importlib.import_module(f"pretrain.ops.{module}"), name)


def run_triton(
  kernel: str, arrays: Sequence, results: Sequence, launch: Launch, constants: dict
) -> Sequence[jax.Array]:
  """Runs a kernel without `jax.vmap`; tests replace this function with an interpreter."""
  import jax_triton

  function, aliases = triton_function(kernel), dict(launch.aliases)
  options = constants | {
    "kernel": function,
    "grid": (launch.grid,),
    "num_warps": launch.warps,
    "num_stages": launch.stages,
    "compute_capability": _planned_capability(),
    "name": kernel.rpartition(".")[2],
  }
  is_old = "out_type" not in inspect.signature(jax_triton.triton_call).parameters
  if is_old:  # 0.3, the newest for Python 3.11
    return jax_triton.triton_call(*arrays, out_shape=list(results), input_output_aliases=aliases, **options)
  # A result in an array's memory is a reference, and the argument for the array itself stays empty.
  names = function.arg_names[len(arrays) :]
  refs = {names[result]: jax.new_ref(arrays[array]) for array, result in aliases.items()}
  arrays = [0 if at in aliases else array for at, array in enumerate(arrays)]
  others = {name: like for name, like in zip(names, results) if name not in refs}
  made = jax_triton.triton_call(*arrays, out_type=list(others.values()), **refs, **options)
  found = dict(zip(others, made)) | {name: ref[...] for name, ref in refs.items()}
  return [found[name] for name, _ in zip(names, results)]


def _planned_capability() -> int | None:
  """Returns the compute capability to compile for without a GPU; None: that of the GPU here."""
  if jax.default_backend() == "gpu":
    return None
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return 90 if device is not None and re.search(r"\bH\d00\b", device.device_kind) else 80
