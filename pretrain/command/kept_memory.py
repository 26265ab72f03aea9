"""Memory of temporary arrays that a program on CPU keeps from step to step."""

import ctypes
import importlib.util
import os

# Names and numbers of glibc's malloc.h.
_ONE_ARENA, _NO_MAPPED_BLOCKS, _NEVER_GIVEN_BACK = (-8, 1), (-4, 0), (-1, -1)


def keep_temporaries() -> None:
  """Tells glibc to keep freed memory for the next step, where JAX will run on CPU.

  XLA takes the memory of a step at its start and frees it at its end. By default each such block
  goes back to the system, which clears it anew page by page: a tenth of a step. The price is memory: up to
  another block of the same size, where the freed one does not fit exactly.

  To be called before JAX starts its threads, which choose their part of the heap then. Nothing happens with
  another C library, where an accelerator's plug-in is installed, or where the user has set malloc up.
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
