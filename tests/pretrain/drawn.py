"""Random arrays for tests, drawn by numpy: jax.random compiles a program or two for every shape."""

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed: int, *shape: int) -> jax.Array:
  """Standard normal numbers, float32."""
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def uniform(seed: int, *shape: int) -> jax.Array:
  """Numbers between 0 and 1, float32."""
  return jnp.asarray(np.random.default_rng(seed).random(shape, np.float32))


def gumbel(seed: int, *shape: int) -> jax.Array:
  """Standard Gumbel numbers, float32."""
  return jnp.asarray(np.random.default_rng(seed).gumbel(size=shape).astype(np.float32))


def integers(seed: int, end: int, *shape: int) -> jax.Array:
  """Whole numbers from 0 to `end` - 1, int32."""
  return jnp.asarray(np.random.default_rng(seed).integers(0, end, shape, np.int32))


def flags(seed: int, *shape: int) -> jax.Array:
  """True for about half."""
  return jnp.asarray(np.random.default_rng(seed).random(shape) < 0.5)
