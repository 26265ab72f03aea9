"""The GELU of a biased sum, and the product that reads it, as one operation."""

import jax
import jax.numpy as jnp

from pretrain.mesh.sharding import constrain
from pretrain.ops import gelu_triton
from pretrain.ops.attention.attention import takes_triton
from pretrain.ops.dense import add_bias, product, summed_over_tokens
from pretrain.ops.gelu import gelu
from pretrain.ops.kept import keep


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
    return with_kernels(x, bias, kernel)
  return product(gelu(_sum(x, bias)), kernel)


def _sum(x: jax.Array, bias: jax.Array) -> jax.Array:
  return keep(constrain(add_bias(x, bias), "batch", "length", "mlp"))


@jax.custom_vjp
def with_kernels(x: jax.Array, bias: jax.Array, kernel: jax.Array) -> jax.Array:
  """Computes `biased_gelu_product` with the kernels of `gelu_triton`."""
  return _forward(x, bias, kernel)[0]


def _forward(x: jax.Array, bias: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple]:
  y = _sum(x, bias)
  return gelu_triton.forward(y) @ kernel, (y, kernel, jnp.zeros((), bias.dtype))


def _backward(saved: tuple, given: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  y, kernel, like_bias = saved
  d_x, activated, d_bias = gelu_triton.gradients(y, jnp.einsum("...o,io->...i", given, kernel))
  d_kernel = summed_over_tokens(activated, given).astype(kernel.dtype)
  return d_x, d_bias.astype(like_bias.dtype), d_kernel


with_kernels.defvjp(_forward, _backward)
