"""A GELU's gradient on NVIDIA GPUs: the arrays of `gelu_triton_kernels`, as one device has them.

XLA has two passes over arrays of tokens: one for the gradient, and one that sums it for the bias.
"""

import jax
import jax.numpy as jnp

from pretrain.ops import triton_call
from pretrain.ops.triton_call import Launch

# Not measured yet. In bfloat16 a thread loads 16 bytes of each token of a block from both arrays at once, and
# needs at most 64 registers, as ptxas has it for an H100: all programs have room at the same time.
_LANES = 1_024  # of a program
_WARPS = 4  # for so many lanes
_BLOCK = 2  # tokens of a program at once
_PROGRAMS = 1_056  # eight for each of an H100's 132 multiprocessors


def gradients(y: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The gradient of y, GELU(y), and the gradient of a bias that was added to y, [width] float32.

  Args:
    y: [..., width] float.
    given: the gradient of GELU(y), like y.
  """
  width = y.shape[-1]
  tokens, lanes = y.size // width, min(_LANES, 1 << (width - 1).bit_length())
  columns = -(-width // lanes)
  programs = max(1, min(_PROGRAMS // columns, -(-tokens // _BLOCK)))
  like = jax.ShapeDtypeStruct(y.shape, y.dtype)
  results = like, like, jax.ShapeDtypeStruct((programs, width), jnp.float32)
  launch = Launch(programs * columns, max(1, _WARPS * lanes // _LANES))
  constants = {"tokens": tokens, "width": width, "lanes": lanes, "block": _BLOCK, "programs": programs}
  d_y, again, sums = triton_call.call("gelu_triton_kernels.backward", (y, given), results, launch, constants)
  return d_y, again, jnp.sum(sums, axis=0)
