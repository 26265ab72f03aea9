"""The norm of a sum on NVIDIA GPUs: prepares arrays for the kernels in `triton_kernels`.

XLA makes two passes over arrays of tokens forward and seven backward, some of which write float32.
"""

import jax
import jax.numpy as jnp

from pretrain.ops import platforms, row_random
from pretrain.ops.platforms import Launch

# The fastest of several values on an H200 with a width of 768.
_LANES = 1_024  # of a warp
_BLOCK = 1  # tokens of a program at once
_PROGRAMS = 1_056  # of the backward kernel: eight for each of an H100's 132 multiprocessors


def takes(width: int) -> bool:
  """Returns whether the kernels are installed and support this width: a program's registers must fit it."""
  return width <= 8_192 and platforms.has_triton()


def facts(words: jax.Array | None, kept_rows: jax.Array) -> jax.Array:
  """Packs each row's two dropout key words and whether its branch is added: [rows, 3] int32.

  Args:
    words: [rows, 2] uint32 of `row_random.key_words`; None: no dropout.
    kept_rows: [rows] bool, False where the branch is not added.
  """
  words = jnp.zeros((len(kept_rows), 2), jnp.uint32) if words is None else words
  words = jax.lax.bitcast_convert_type(words, jnp.int32)
  return jnp.concatenate([words, kept_rows.astype(jnp.int32)[:, None]], axis=1)


def forward(
  x: jax.Array,
  product: jax.Array,
  vectors: jax.Array,
  facts: jax.Array,
  dropout_rate: float,
  eps: float,
  dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
  """Returns the norm of x + dropout(product + bias of the branch), in `dtype`, and the sum, in x's dtype.

  Args:
    x: [rows, length, width] float; `product` has its shape.
    vectors: [3, width] float32, the branch's bias, the norm's scale and its bias.
    facts: [rows, 3] int32 of `facts`.
  """
  constants = _constants(x.shape, dropout_rate, eps)
  arrays = x, product, vectors, facts
  results = jax.ShapeDtypeStruct(x.shape, dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)
  launch = Launch(-(-constants["tokens"] // _BLOCK), max(1, constants["lanes"] // _LANES))
  kernel = "triton_kernels.norm_forward"
  normed, added = platforms.call_triton(kernel, arrays, results, launch, constants)
  return normed, added


def gradients(
  added: jax.Array,
  given: jax.Array,
  vectors: jax.Array,
  facts: jax.Array,
  dropout_rate: float,
  eps: float,
  *,
  of_sum: jax.Array | None = None,
  dtype: jnp.dtype | None = None,
) -> tuple[jax.Array, ...]:
  """Returns gradients of the norm's input, the branch, the branch's bias, the norm's scale and its bias.

  Args:
    added: [rows, length, width] float, the sum that was normalised.
    given: the gradient of the norm's result, of the shape of `added`.
    vectors, facts: as in `forward`.
    of_sum: the gradient of the sum as another result, like `added`; None: it is none.
    dtype: that of the branch; None: that of `added`.
  """
  constants = _constants(added.shape, dropout_rate, eps) | {"has_sum": of_sum is not None}
  constants["programs"] = programs = min(_PROGRAMS, -(-constants["tokens"] // _BLOCK))
  wide = [jax.ShapeDtypeStruct(added.shape, of) for of in (added.dtype, dtype or added.dtype)]
  results = *wide, jax.ShapeDtypeStruct((programs, 3, added.shape[-1]), jnp.float32)
  arrays = added, given, given if of_sum is None else of_sum, vectors, facts
  launch = Launch(programs, max(1, constants["lanes"] // _LANES))
  *found, sums = platforms.call_triton("triton_kernels.norm_backward", arrays, results, launch, constants)
  return *found, *jnp.sum(sums, axis=0)


def _constants(shape: tuple[int, ...], rate: float, eps: float) -> dict:
  rows, length, width = shape
  return {
    "tokens": rows * length,
    "length": length,
    "width": width,
    "lanes": 1 << (width - 1).bit_length(),
    "block": _BLOCK,
    "eps": eps,
    "limit": int(row_random.drop_below(rate)),
    "keeps": 1.0 - rate,
  }
