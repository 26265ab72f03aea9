"""A dense layer that says what its backward pass keeps, and whose gradients add up in float32."""

import functools

import jax
import jax.numpy as jnp

from pretrain.ops.attention import platform
from pretrain.ops.kept import keep


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array, keeps_input: bool = False) -> jax.Array:
  """x @ kernel + bias in x's dtype, [..., outputs].

  Args:
    x: [..., inputs] float.
    kernel: [inputs, outputs] of x's dtype.
    bias: [outputs] float, rounded to x's dtype before it is added.
    keeps_input: whether the backward pass keeps x by itself, for an x that a kernel computed. JAX rounds what
      is both kept and read; nothing fuses with a kernel, so marking x itself would cost one more copy of it.
  """
  del keeps_input
  return x @ kernel + bias.astype(x.dtype)


def _forward(x: jax.Array, kernel: jax.Array, bias: jax.Array, keeps_input: bool):
  like_bias = jnp.zeros((), bias.dtype)
  return dense(x, kernel, bias, keeps_input), (keep(x) if keeps_input else x, kernel, like_bias)


def _backward(keeps_input: bool, saved: tuple, given: jax.Array) -> tuple:
  del keeps_input
  x, kernel, like_bias = saved
  d_x = jnp.einsum("...o,io->...i", given, kernel)
  d_kernel = _summed_over_tokens(x, given)
  d_bias = jnp.sum(given, axis=tuple(range(given.ndim - 1)), dtype=jnp.float32)
  return d_x, d_kernel.astype(kernel.dtype), d_bias.astype(like_bias.dtype)


def _summed_over_tokens(x: jax.Array, given: jax.Array) -> jax.Array:
  """The kernel's gradient, [inputs, outputs] float32.

  On CPUs the tokens are one axis: of two, XLA copies x into another order first, and in that copy it computes
  what x came from, such as a GELU, again and one number at a time.
  """
  if platform() == "cpu":
    x, given = (array.reshape(-1, array.shape[-1]) for array in (x, given))
  return jnp.einsum("...i,...o->io", x, given, preferred_element_type=jnp.float32)


dense.defvjp(_forward, _backward)
