"""Triton kernels for NVIDIA GPUs: a GELU, its gradient, and the gradient of a bias before it."""

import triton
import triton.language as tl


@triton.jit
def _normal(x):
  """Returns the standard normal distribution function at x, within 3e-7, and its density.

  Both use one exponential: Abramowitz and Stegun's formula 7.1.26. With `tl.math.erf` the kernel has 50
  instructions per number instead of 33, and takes 128 microseconds instead of 119 on an H200 (32 x 512 x
  3072).
  """
  power = tl.exp2(-0.7213475204444817 * x * x)  # exp(-x**2 / 2)
  t = 1.0 / (1.0 + 0.23164188 * tl.abs(x))
  upper = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
  upper *= t * power
  return tl.where(x < 0, upper, 1.0 - upper), 0.3989422804014327 * power


@triton.jit
def gelu_forward(
  y,  # [numbers]
  result,
  numbers: tl.constexpr,
  block: tl.constexpr,  # of a program
):
  """Writes GELU(y)."""
  places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
  x = tl.load(y + places, mask=places < numbers, other=0.0).to(tl.float32)
  below, _ = _normal(x)
  tl.store(result + places, (x * below).to(result.dtype.element_ty), mask=places < numbers)


@triton.jit
def gelu_backward(
  y,  # the GELU's argument, [tokens, width]
  given,  # the gradient of the GELU
  d_y,
  result,
  sums,  # [programs, width] float32: the gradient of the bias
  tokens: tl.constexpr,
  width: tl.constexpr,
  lanes: tl.constexpr,  # of a program, a power of two
  block: tl.constexpr,  # tokens of a program at once
  programs: tl.constexpr,  # for the same lanes
):
  """Writes the gradient of y, GELU(y), and each program's part of the bias's gradient."""
  columns: tl.constexpr = (width + lanes - 1) // lanes
  # Neighbouring programs have the same tokens, so that together they read whole rows.
  first, lane = tl.program_id(0) // columns, tl.program_id(0) % columns * lanes + tl.arange(0, lanes)
  d_bias = tl.zeros([block, lanes], tl.float32)
  for start in range(first * block, tokens, programs * block):
    token = start + tl.arange(0, block)
    real = (token < tokens)[:, None] & (lane < width)[None, :]
    places = token.to(tl.int64)[:, None] * width + lane[None, :]
    x = tl.load(y + places, mask=real, other=0.0).to(tl.float32)
    gradient = tl.load(given + places, mask=real, other=0.0).to(tl.float32)
    below, density = _normal(x)
    tl.store(result + places, (x * below).to(result.dtype.element_ty), mask=real)
    gradient = (gradient * (below + x * density)).to(d_y.dtype.element_ty)
    tl.store(d_y + places, gradient, mask=real)
    d_bias += gradient.to(tl.float32)  # after rounding, so that it is the sum of the written gradients
  tl.store(sums + first * width + lane, tl.sum(d_bias, 0), mask=lane < width)
