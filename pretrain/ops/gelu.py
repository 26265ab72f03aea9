"""The exact GELU, x times the normal distribution's share below x."""

import jax
import jax.numpy as jnp


def gelu(x: jax.Array) -> jax.Array:
  """x * Phi(x) elementwise, of a float array, in its dtype.

  In bfloat16 it is computed in float32 and rounded once, by erf: on a TPU that costs nothing beside a
  product, and the erfc that JAX takes as much as the product. The two differ by 1e-7 of x, which is seen in
  float32 alone, where erfc keeps all digits of small results.
  """
  if x.dtype != jnp.bfloat16:
    return jax.nn.gelu(x, approximate=False)
  wide = x.astype(jnp.float32)
  return (0.5 * wide * (1.0 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)
