"""LayerNorm; on TPUs its gradient is by formula and reads the input and two numbers for each vector."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from pretrain.ops.attention.attention import platform
from pretrain.ops.kept import keep


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype) -> jax.Array:
  """Computes (x - mean) / sqrt(variance + eps) * scale + bias over the last axis, in `dtype`.

  x is [..., width] float; `scale` and `bias` are [width] float32. Statistics are float32; the variance is
  computed from x - mean, in two passes as in torch. On TPUs the gradient is by formula, and bfloat16 is read
  once for both moments. On CPUs JAX's own gradient is faster.
  """
  on = platform()
  if on == "gpu":
    return row_major(_plain(row_major(x), scale, bias, eps, dtype))
  return (by_formula if on == "tpu" else _plain)(x, scale, bias, eps, dtype)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float, dtype: jnp.dtype) -> jax.Array:
  """x / sqrt(mean of squares + eps) * scale over the last axis, in `dtype`; statistics are float32.

  Source: Zhang and Sennrich 2019; transformers 5.23, models/ultrabert.
  """
  wide = x.astype(jnp.float32)
  inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1) + eps)
  return (wide * (inverse[..., None] * scale)).astype(dtype)


def row_major(x: jax.Array) -> jax.Array:
  """Returns x in row-major layout, also for its gradient.

  On an H200 XLA stored [rows, length, width] with rows innermost; readers of masked LM's norms then copied
  them into another order, in a third of the step's time.
  """
  return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _plain(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype) -> jax.Array:
  wide = x.astype(jnp.float32)
  # [...], not [..., 1], because TPUs pad a short last axis.
  centred = wide - jnp.mean(wide, axis=-1)[..., None]
  inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1) + eps)
  return (centred * (inverse[..., None] * scale) + bias).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def by_formula(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype) -> jax.Array:
  """Computes `layer_norm`, storing mean and deviation of each vector for the backward pass."""
  return forward(x, scale, bias, eps, dtype)[0]


def forward(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype) -> tuple:
  """Computes `layer_norm` and the backward pass' inputs; mean and deviation are marked to be kept."""
  wide = x.astype(jnp.float32)
  mean = keep(jnp.mean(wide, axis=-1))
  centred = wide - mean[..., None]
  if x.dtype == jnp.bfloat16:
    # One pass over x for both moments. The difference of squares loses 2^-24 of them, bfloat16 lost 2^-18.
    variance = jnp.maximum(jnp.mean(jnp.square(wide), axis=-1) - jnp.square(mean), 0.0)
  else:
    variance = jnp.mean(jnp.square(centred), axis=-1)
  inverse = keep(jax.lax.rsqrt(variance + eps))
  return (centred * (inverse[..., None] * scale) + bias).astype(dtype), (x, scale, mean, inverse)


def _backward(eps: float, dtype: jnp.dtype, saved: tuple, d_output: jax.Array) -> tuple:
  del eps, dtype
  x, scale, mean, inverse = saved
  d_output, inverse = d_output.astype(jnp.float32), inverse[..., None]
  normed = (x.astype(jnp.float32) - mean[..., None]) * inverse
  d_normed = d_output * scale
  of_mean = jnp.mean(d_normed, axis=-1, keepdims=True)
  of_inverse = jnp.mean(d_normed * normed, axis=-1, keepdims=True)
  d_x = inverse * (d_normed - of_mean - normed * of_inverse)
  # The barrier stops XLA from recomputing it in the product that adds to it, which took 2.6 times as long.
  d_x = jax.lax.optimization_barrier(d_x.astype(x.dtype))
  rows = tuple(range(x.ndim - 1))
  return d_x, jnp.sum(d_output * normed, axis=rows), jnp.sum(d_output, axis=rows)


by_formula.defvjp(forward, _backward)
