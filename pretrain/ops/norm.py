"""LayerNorm and RMSNorm, and the norm of the sum of a residual and a branch, with its bias and dropout.

On TPUs the gradient of LayerNorm is by formula and reads the input and two numbers for each vector.
"""

import functools
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from pretrain.mesh.sharding import automatic_axes
from pretrain.ops import norm_tpu, norm_triton, row_random
from pretrain.ops.dense import add_bias
from pretrain.ops.kept import keep
from pretrain.ops.platforms import platform


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
  return layer_norm_forward(x, scale, bias, eps, dtype)[0]


def layer_norm_forward(
  x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype
) -> tuple:
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


def _layer_norm_backward(eps: float, dtype: jnp.dtype, saved: tuple, d_output: jax.Array) -> tuple:
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


by_formula.defvjp(layer_norm_forward, _layer_norm_backward)


class Branch(NamedTuple):
  """The output of attention or MLP before it is added to x: product, bias, kept rows and dropout keys."""

  product: jax.Array  # [batch, length, width] float
  bias: jax.Array | None  # [width] float, added to every product, rounded to its dtype; None: there is none
  kept_rows: jax.Array | None  # [batch] bool, False where the branch counts as 0; None: it never does
  row_keys: jax.Array | None  # [batch] keys of its dropout; None: no dropout


class Settings(NamedTuple):
  """Static settings of `added_norm`: dropout, epsilon, the norm's dtype and whether the sum is a result."""

  rate: float  # of dropout
  use: row_random.Use
  eps: float
  dtype: jnp.dtype  # of the norm
  has_sum: bool = False


def added_norm(
  x: jax.Array,
  branch: Branch,
  scale: jax.Array,
  bias: jax.Array,
  settings: Settings,
  *,
  part: row_random.Part | None = None,
) -> jax.Array:
  """Computes layer_norm(x + dropout(product + bias of the branch)), [batch, length, width].

  With whole rows and nothing left to the partitioner, one kernel computes all gradients on TPUs; on NVIDIA
  GPUs another one also computes the value.

  Args:
    x: [batch, length, width] float, like the branch's product.
    scale: [width] float32.
    bias: [width] float32, of the norm.
    part: the part of longer rows that these are, for the dropout; None: whole rows.
  """
  kernels = _kernels(x, part)
  if kernels and branch.bias is not None:
    return with_kernels(kernels, settings, x, branch, scale, bias)
  added = added_to(x, branch, settings, part=part)
  return layer_norm(added, scale, bias, settings.eps, settings.dtype)


def norm_and_sum(
  x: jax.Array,
  branch: Branch,
  scale: jax.Array,
  bias: jax.Array,
  settings: Settings,
  *,
  part: row_random.Part | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Computes `added_norm` and, in x's dtype, the sum, by the same kernels."""
  kernels = _kernels(x, part)
  if kernels:
    return with_kernels(kernels, settings._replace(has_sum=True), x, branch, scale, bias)
  added = added_to(x, branch, settings, part=part)
  return layer_norm(added, scale, bias, settings.eps, settings.dtype), added


def _kernels(x: jax.Array, part: row_random.Part | None) -> ModuleType | None:
  """Returns the kernels for whole rows of which nothing is left to the partitioner; None: there are none."""
  kernels = {"tpu": norm_tpu, "gpu": norm_triton}.get(platform())
  is_whole = part is None and not automatic_axes()
  return kernels if kernels and is_whole and kernels.takes(x.shape[-1]) else None


def added_to(
  x: jax.Array, branch: Branch, settings: Settings, *, part: row_random.Part | None = None
) -> jax.Array:
  """Returns x + dropout(product + bias of the branch), [batch, length, width] in x's dtype."""
  added = branch.product if branch.bias is None else add_bias(branch.product, branch.bias)
  if branch.kept_rows is not None:
    added = jnp.where(branch.kept_rows[:, None, None], added, jnp.zeros_like(added))
  return keep(x + row_random.dropout(added, branch.row_keys, settings.use, rate=settings.rate, part=part))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def with_kernels(
  kernels: ModuleType, settings: Settings, x: jax.Array, branch: Branch, scale: jax.Array, bias: jax.Array
) -> Any:
  """Computes `added_norm` of whole rows with the kernels of `norm_tpu` or `norm_triton`.

  With `settings.has_sum` it is `norm_and_sum`.
  """
  return _forward(kernels, settings, x, branch, scale, bias)[0]


def _forward(
  kernels: ModuleType, settings: Settings, x: jax.Array, branch: Branch, scale: jax.Array, bias: jax.Array
) -> tuple[Any, tuple]:
  words, kept_rows = _of_rows(settings, len(x), branch.kept_rows, branch.row_keys)
  if kernels is norm_triton:
    of_branch = jnp.zeros_like(scale) if branch.bias is None else branch.bias
    vectors = jnp.stack([vector.astype(jnp.float32) for vector in (of_branch, scale, bias)])
    arrays = x, branch.product, vectors, norm_triton.facts(words, kept_rows)
    normed, added = norm_triton.forward(*arrays, _rate(settings, words), settings.eps, settings.dtype)
    # Without the norm's result the kernel, and the product before it, would run again for the gradients.
    # The small arrays are kept because recomputing them takes several tiny kernels.
    normed, added, *fixed = (keep(array) for array in (normed, added, *arrays[2:]))
  else:
    added = added_to(x, branch, settings)
    # Only its moments are kept: products whose gradients read the norm's result recompute it.
    normed, _ = layer_norm_forward(added, scale, bias, settings.eps, settings.dtype)
    fixed = scale, words, kept_rows
  like = [None if of is None else jnp.zeros((), of.dtype) for of in (branch.product, branch.bias)]
  return (normed, added) if settings.has_sum else normed, (added, tuple(fixed), words, *like)


def _backward(kernels: ModuleType, settings: Settings, saved: tuple, given: Any) -> tuple:
  added, fixed, words, like_product, like_bias = saved
  given, of_sum = given if settings.has_sum else (given, None)
  options = {} if of_sum is None else {"of_sum": of_sum, "dtype": like_product.dtype}
  found = kernels.gradients(added, given, *fixed, _rate(settings, words), settings.eps, **options)
  d_x, d_product, d_branch_bias, *of_norm = found
  d_branch_bias = None if like_bias is None else d_branch_bias.astype(like_bias.dtype)
  return d_x, Branch(d_product, d_branch_bias, None, None), *of_norm


def _rate(settings: Settings, words: jax.Array | None) -> float:
  return 0.0 if words is None else settings.rate


def _of_rows(
  settings: Settings, number: int, kept_rows: jax.Array | None, row_keys: jax.Array | None
) -> tuple:
  """Returns per row, for the kernels: words of its dropout key (None: no dropout), and `kept_rows`."""
  words = None
  if row_keys is not None and settings.rate:
    words = row_random.key_words(row_random.fold(row_keys, settings.use))
  return words, jnp.ones(number, jnp.bool_) if kept_rows is None else kept_rows


with_kernels.defvjp(_forward, _backward)
