"""The exact GELU, x times the normal distribution's share below x."""

import jax
import jax.numpy as jnp


def gelu(x: jax.Array) -> jax.Array:
  """x * Phi(x) elementwise, of a float array, in its dtype; at least float32 is computed with.

  By erf, as PyTorch's `gelu` has it, which the official code calls. JAX's own takes erfc, which keeps all
  digits of results below 1e-7 and costs more: on a TPU as much as the product it stands beside, on a CPU a
  twentieth of a base-size step.
  """
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  return (0.5 * wide * (1.0 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)
