"""The two steps of a dense layer, product and bias; gradients are accumulated in float32."""

import functools

import jax
import jax.numpy as jnp

from pretrain.ops.attention.attention import platform
from pretrain.ops.kept import keep


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, kernel: jax.Array, keeps_input: bool = False) -> jax.Array:
  """Returns x @ kernel in x's dtype, [..., outputs].

  Args:
    x: [..., inputs] float.
    kernel: [inputs, outputs] of x's dtype.
    keeps_input: whether to store x for the backward pass here, for an x from a kernel. JAX rounds a marked
      array once more, and nothing fuses with a kernel, so marking x itself would cost one more copy.
  """
  del keeps_input
  return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array, keeps_input: bool):
  return product(x, kernel, keeps_input), (keep(x) if keeps_input else x, kernel)


def _backward(keeps_input: bool, saved: tuple, given: jax.Array) -> tuple:
  del keeps_input
  x, kernel = saved
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


product.defvjp(_forward, _backward)
