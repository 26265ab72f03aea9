"""A Pallas kernel for TPUs that computes all gradients of `added_norm` in one pass over memory.

XLA's fusions make four passes over arrays [rows, length, width], and every product that reads the gradient
before dropout redraws the mask.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.ops import row_random
from pretrain.ops.platforms import platform

_LANES = 128
_SUBLANES = 8  # of a float32 register; sums over tokens keep so many parts
_AT_ONCE = 16  # tokens that fit the registers; bfloat16 is stored in pairs of 8
_BLOCK = 512  # tokens of a grid step, of one row or of several short ones, of a width up to 1,024


class Sizes(NamedTuple):
  """Array sizes, dropout rate and epsilon for which the gradient kernel is compiled."""

  rows: int
  length: int
  width: int
  dropout_rate: float
  eps: float

  @property
  def tokens(self) -> int:
    """Number of tokens of one row that a grid step processes."""
    return min(self._block, -(-self.length // _AT_ONCE) * _AT_ONCE)

  @property
  def at_once(self) -> int:
    """Number of rows that a grid step processes."""
    return math.gcd(self.rows, self._block // self.tokens)

  @property
  def _block(self) -> int:
    return _BLOCK * 1_024 // max(self.width, 1_024) // _AT_ONCE * _AT_ONCE


def takes(width: int) -> bool:
  """Returns whether the kernel supports this width: whole registers, in blocks that fit VMEM."""
  return width % _LANES == 0 and width <= 8_192


def gradients(
  x: jax.Array,
  given: jax.Array,
  scale: jax.Array,
  words: jax.Array | None,
  kept_rows: jax.Array,
  dropout_rate: float,
  eps: float,
  *,
  of_sum: jax.Array | None = None,
  dtype: jnp.dtype | None = None,
) -> tuple[jax.Array, ...]:
  """Returns gradients of the norm's input, the branch, the branch's bias, the norm's scale and its bias.

  On CPUs the kernel is interpreted, for tests.

  Args:
    x: [rows, length, width] float, the sum that was normalised.
    given: the gradient of the norm's result, of the shape of x.
    scale: [width] float32.
    words: [rows, 2] uint32 of `row_random.key_words`; None: no dropout.
    kept_rows: [rows] bool, False where a row's branch was not added.
    of_sum: the gradient of the sum as another result, like x; None: it is none.
    dtype: that of the branch; None: that of x.
  """
  sizes = Sizes(*x.shape, dropout_rate=0.0 if words is None else dropout_rate, eps=eps)
  grid = (sizes.rows // sizes.at_once, pl.cdiv(sizes.length, sizes.tokens))
  block = pl.BlockSpec((sizes.at_once, sizes.tokens, sizes.width), lambda rows, tile: (rows, tile, 0))
  scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
  of_width = pl.BlockSpec((1, sizes.width), lambda rows, tile: (0, 0))
  of_rows = pl.BlockSpec((1, 3, _SUBLANES, sizes.width), lambda rows, tile: (rows, 0, 0, 0))
  wide, of_branch = (jax.ShapeDtypeStruct(x.shape, of) for of in (x.dtype, dtype or x.dtype))
  sums = jax.ShapeDtypeStruct((grid[0], 3, _SUBLANES, sizes.width), jnp.float32)
  branches = 0 if words is None and of_branch.dtype == x.dtype else 1
  of_sums = [] if of_sum is None else [of_sum]
  arrays = (x, given, *of_sums, wide, *[of_branch] * branches)
  moved = sum(array.size * array.dtype.itemsize for array in arrays)
  d_x, parts, *d_branch = pl.pallas_call(
    functools.partial(_kernel, sizes),
    out_shape=(wide, sums, *[of_branch] * branches),
    grid=grid,
    in_specs=[scalars, scalars, block, block, of_width, [block] * len(of_sums)],
    out_specs=(block, of_rows, *[block] * branches),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=_vmem_bytes(sizes, x.dtype, 4 + len(of_sums)),
    ),
    cost_estimate=pl.CostEstimate(flops=40 * x.size, transcendentals=0, bytes_accessed=moved),
    interpret=platform() == "cpu",
    name="added_norm_backward",
  )(
    jnp.zeros((1, 2), jnp.int32) if words is None else words.astype(jnp.int32),
    kept_rows.astype(jnp.float32)[:, None] / (1.0 - sizes.dropout_rate),
    x,
    given,
    scale[None],
    of_sums,
  )
  if not branches:
    d_branch = [jnp.where(kept_rows[:, None, None], d_x, jnp.zeros_like(d_x))]
  return d_x, *d_branch, *jnp.sum(parts, axis=(0, 2))


def _vmem_bytes(sizes: Sizes, dtype: jnp.dtype, arrays: int) -> int:
  """Returns an upper bound of the kernel's VMEM: blocks of all arrays twice, and spilled registers."""
  return (8 << 20) + 2 * arrays * sizes.at_once * sizes.tokens * sizes.width * jnp.dtype(dtype).itemsize


def _kernel(sizes: Sizes, words, factors, x, given, scale, of_sums, d_x, sums, *d_branch) -> None:
  rows, tile = pl.program_id(0), pl.program_id(1)

  @pl.when(tile == 0)
  def _():
    sums[...] = jnp.zeros_like(sums)

  for at in range(sizes.at_once):
    row = rows * sizes.at_once + at
    for start in range(0, sizes.tokens, _AT_ONCE):
      tokens, first = (at, slice(start, start + _AT_ONCE)), tile * sizes.tokens + start
      own, of_norm = (_real(sizes, array[tokens], first) for array in (x, given))
      d_norm, *summands = _differentiate(sizes, own, of_norm, scale[...])
      for of_sum in of_sums:
        d_norm += _real(sizes, of_sum[tokens], first)
      d_x[tokens] = d_norm.astype(d_x.dtype)
      dropped = d_norm * factors[row, 0]
      if sizes.dropout_rate:
        own_words = [words[row, word].astype(jnp.uint32) for word in range(2)]
        dropped = jnp.where(_kept(sizes, first, own_words), dropped, 0.0)
      for branch in d_branch:
        branch[tokens] = dropped.astype(branch.dtype)
      for place, summand in enumerate((dropped, *summands)):
        for part in range(0, _AT_ONCE, _SUBLANES):
          sums[0, place] += summand[part : part + _SUBLANES]


def _real(sizes: Sizes, tokens: jax.Array, first) -> jax.Array:
  """Returns tokens of a row from `first` on in float32; 0 beyond its end, where memory is undefined."""
  tokens = tokens.astype(jnp.float32)
  if sizes.length % sizes.tokens == 0:
    return tokens
  at = first + jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
  return jnp.where(at < sizes.length, tokens, 0.0)


def _differentiate(sizes: Sizes, x: jax.Array, given: jax.Array, scale: jax.Array) -> tuple:
  """Returns the gradient of the norm's input, and the summands of scale's and bias's, [tokens, width]."""

  def mean(of: jax.Array) -> jax.Array:
    return jnp.sum(of, axis=1, keepdims=True) * (1.0 / sizes.width)

  centred = x - mean(x)
  inverse = jax.lax.rsqrt(mean(jnp.square(centred)) + sizes.eps)
  normed = centred * inverse
  d_normed = given * scale
  d_x = inverse * (d_normed - mean(d_normed) - normed * mean(d_normed * normed))
  return d_x, given * normed, given


def _kept(sizes: Sizes, first, words: list) -> jax.Array:
  """Draws the branch's dropout mask, [tokens, width] bool, as `row_random.row_kept`."""
  shape = (_AT_ONCE, sizes.width)
  token = first + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
  counter = token * sizes.width + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  return row_random.is_kept(counter.astype(jnp.uint32), *words, rate=sizes.dropout_rate)
