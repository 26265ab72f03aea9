"""A GELU and its gradient on NVIDIA GPUs: prepares arrays for `gelu_triton_kernels`.

For the gradient XLA makes two passes over arrays of tokens, one of which sums it for the bias. Its erf has so
many instructions that a pass takes nearly twice as long as moving the bytes.
"""

import jax
import jax.numpy as jnp

from pretrain.ops import triton_call
from pretrain.ops.triton_call import Launch

# Fastest in the first of two sweeps on an H200 (bfloat16, width 3,072); equal within noise in the second.
_LANES = 512  # of a program
_WARPS = 4  # for so many lanes
_BLOCK = 2  # tokens of a program at once
_PROGRAMS = 1_320  # ten for each of an H100's 132 multiprocessors
_NUMBERS = 2_048  # elements of a program of the forward kernel


def forward(y: jax.Array) -> jax.Array:
  """Returns GELU(y) in y's dtype, within 3e-7 of y's size before rounding."""
  launch = Launch(-(-y.size // _NUMBERS), _WARPS)
  constants = {"numbers": y.size, "block": _NUMBERS}
  like = jax.ShapeDtypeStruct(y.shape, y.dtype)
  return triton_call.call("gelu_triton_kernels.gelu_forward", (y,), (like,), launch, constants)[0]


def gradients(y: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the gradient of y, GELU(y), and the gradient of a bias in y, [width] float32.

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
  d_y, again, sums = triton_call.call(
    "gelu_triton_kernels.gelu_backward", (y, given), results, launch, constants
  )
  return d_y, again, jnp.sum(sums, axis=0)
