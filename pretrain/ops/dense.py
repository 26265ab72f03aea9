"""Dense layers, with gradients accumulated in float32, and the exact GELU between two of them.

For the gradient of a GELU XLA makes two passes over arrays of tokens, one of which sums it for the bias. Its
erf has so many instructions that a pass takes nearly twice as long as moving the bytes. So NVIDIA GPUs have
Triton kernels.
"""

import functools

import jax
import jax.numpy as jnp

from pretrain.mesh.sharding import constrain
from pretrain.ops import platforms
from pretrain.ops.kept import keep
from pretrain.ops.platforms import Launch, platform, takes_triton


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
  """Adds a bias [outputs], rounded to x's dtype, to x [..., outputs]."""
  return x + bias.astype(x.dtype)


def _add_bias_backward(like_bias: jax.Array, given: jax.Array) -> tuple:
  if platform() == "gpu":
    # Without the barrier XLA sums the unrounded gradient, and writes and reads it in float32 for that.
    given = jax.lax.optimization_barrier(given)
  d_bias = jnp.sum(given, axis=tuple(range(given.ndim - 1)), dtype=jnp.float32)
  return given, d_bias.astype(like_bias.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), jnp.zeros((), bias.dtype)), _add_bias_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(x: jax.Array, kernel: jax.Array, keeps_input: bool = False, parts: int = 1) -> jax.Array:
  """Returns x @ kernel in x's dtype, [..., outputs].

  Args:
    x: [..., inputs] float.
    kernel: [inputs, outputs] of x's dtype.
    keeps_input: whether to store x for the backward pass here, for an x from a kernel. JAX rounds a marked
      array once more, and nothing fuses with a kernel, so marking x itself would cost one more copy.
    parts: number of equal parts of the outputs. Gradients of the parts may lie apart in memory, as
      attention's kernel for TPUs writes them, so the products of the backward pass have an axis of parts.
  """
  del keeps_input, parts
  return x @ kernel


def _product_forward(x: jax.Array, kernel: jax.Array, keeps_input: bool, parts: int):
  return product(x, kernel, keeps_input, parts), (keep(x) if keeps_input else x, kernel)


def _product_backward(keeps_input: bool, parts: int, saved: tuple, given: jax.Array) -> tuple:
  del keeps_input
  x, kernel = saved
  if parts > 1:
    given, apart = (jnp.reshape(each, (*each.shape[:-1], parts, -1)) for each in (given, kernel))
    d_x = jnp.einsum("...po,ipo->...i", given, apart)
    d_kernel = [summed_over_tokens(x, given[..., part, :]) for part in range(parts)]
    return d_x, jnp.concatenate(d_kernel, axis=1).astype(kernel.dtype)
  d_x = jnp.einsum("...o,io->...i", given, kernel)
  return d_x, summed_over_tokens(x, given).astype(kernel.dtype)


def summed_over_tokens(x: jax.Array, given: jax.Array) -> jax.Array:
  """Computes the gradient of a dense layer's kernel, [inputs, outputs] float32, summed over all tokens.

  On CPUs the tokens become one axis. With two, XLA copies x into another order, and recomputes in that copy
  what x came from, such as a GELU, one number at a time.
  """
  if platform() == "cpu":
    x, given = (array.reshape(-1, array.shape[-1]) for array in (x, given))
  return jnp.einsum("...i,...o->io", x, given, preferred_element_type=jnp.float32)


product.defvjp(_product_forward, _product_backward)


def gelu(x: jax.Array) -> jax.Array:
  """Computes x * Phi(x) elementwise in x's dtype, with at least float32 inside.

  It uses erf, as PyTorch's `gelu`, which the official code calls. JAX's own uses erfc, which is more exact
  for results below 1e-7 and slower: on a TPU by as much as the product next to it takes, on a CPU by a
  twentieth of a base-size step.
  """
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  return (0.5 * wide * (1.0 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


def biased_gelu_product(x: jax.Array, bias: jax.Array, kernel: jax.Array) -> jax.Array:
  """Computes gelu(x + bias) @ kernel, [batch, length, outputs] in x's dtype; stores x + bias.

  On NVIDIA GPUs, with nothing left to the partitioner, two Triton kernels compute it for 16-bit dtypes, whose
  rounding is larger than their error of 3e-7: one forward, one for all gradients before the product.

  Args:
    x: [batch, length, width] float.
    bias: [width] float, rounded to x's dtype before it is added.
    kernel: [width, outputs] of x's dtype.
  """
  if x.dtype.itemsize == 2 and takes_triton():
    return gelu_product_by_kernels(x, bias, kernel)
  return product(gelu(_sum(x, bias)), kernel)


def _sum(x: jax.Array, bias: jax.Array) -> jax.Array:
  return keep(constrain(add_bias(x, bias), "batch", "length", "mlp"))


@jax.custom_vjp
def gelu_product_by_kernels(x: jax.Array, bias: jax.Array, kernel: jax.Array) -> jax.Array:
  """Computes `biased_gelu_product` with Triton kernels."""
  return _gelu_product_forward(x, bias, kernel)[0]


def _gelu_product_forward(x: jax.Array, bias: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple]:
  y = _sum(x, bias)
  return gelu_by_kernel(y) @ kernel, (y, kernel, jnp.zeros((), bias.dtype))


def _gelu_product_backward(saved: tuple, given: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  y, kernel, like_bias = saved
  d_x, activated, d_bias = gelu_gradients(y, jnp.einsum("...o,io->...i", given, kernel))
  d_kernel = summed_over_tokens(activated, given).astype(kernel.dtype)
  return d_x, d_bias.astype(like_bias.dtype), d_kernel


gelu_product_by_kernels.defvjp(_gelu_product_forward, _gelu_product_backward)


# Fastest in the first of two sweeps on an H200 (bfloat16, width 3,072); equal within noise in the second.
_LANES = 512  # of a program
_WARPS = 4  # for so many lanes
_BLOCK = 2  # tokens of a program at once
_PROGRAMS = 1_320  # ten for each of an H100's 132 multiprocessors
_NUMBERS = 2_048  # elements of a program of the forward kernel


def gelu_by_kernel(y: jax.Array) -> jax.Array:
  """Returns GELU(y) in y's dtype, within 3e-7 of y's size before rounding."""
  launch = Launch(-(-y.size // _NUMBERS), _WARPS)
  constants = {"numbers": y.size, "block": _NUMBERS}
  like = jax.ShapeDtypeStruct(y.shape, y.dtype)
  return platforms.call_triton("triton_kernels.gelu_forward", (y,), (like,), launch, constants)[0]


def gelu_gradients(y: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
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
  d_y, again, sums = platforms.call_triton(
    "triton_kernels.gelu_backward", (y, given), results, launch, constants
  )
  return d_y, again, jnp.sum(sums, axis=0)
