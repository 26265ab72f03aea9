"""Keeps the memory of temporary arrays from step to step, for programs on CPU."""

import ctypes
import importlib.util
import os

# (parameter, value) of mallopt, from glibc's malloc.h.
_ONE_ARENA, _NO_MAPPED_BLOCKS, _NEVER_GIVEN_BACK = (-8, 1), (-4, 0), (-1, -1)


def keep_temporaries() -> None:
  """Makes glibc keep freed memory for the next step, if JAX will run on CPU.

  XLA allocates a step's memory at its start and frees it at its end. By default each such block returns to
  the system, which clears it again page by page: a tenth of a step. The price is memory: up to another block
  of the same size, if the freed one does not fit exactly.

  Call it before JAX starts its threads, which then choose their part of the heap. It does nothing with
  another C library, if an accelerator's plug-in is installed, or if the user has configured malloc.
  """
  if not _is_cpu_alone() or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
    return
  library = ctypes.CDLL(None)
  if hasattr(library, "mallopt"):
    for parameter, value in (_ONE_ARENA, _NO_MAPPED_BLOCKS, _NEVER_GIVEN_BACK):
      library.mallopt(parameter, value)


def _is_cpu_alone() -> bool:
  platforms = os.environ.get("JAX_PLATFORMS", "")
  plugins = ("jax_plugins", "libtpu")
  return platforms == "cpu" or (not platforms and not any(map(importlib.util.find_spec, plugins)))
