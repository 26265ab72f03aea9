"""Attention on NVIDIA GPUs: the arrays of `attention_triton_kernels`, as one device has them."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import row_random, triton_call
from pretrain.ops.attention_inputs import Fixed, Settings
from pretrain.ops.triton_call import Launch

BLOCK = 64  # queries or keys of a block, as the kernels have it
TILE = 32  # tokens of the tiles that `forward` and `backward_key` go through
_NO_GROUP = np.iinfo(np.int32).min  # the segment of keys that none may read


def forward(settings: Settings, part, query, key, value, bias, fixed) -> tuple[jax.Array, jax.Array]:
  """[rows, length, heads * head_dim], and the logarithm of each query's sum of exponentials.

  Without `key` and `value`, `query` has all three side by side.
  """
  rows, length, width = _sizes(query, key)
  lse = jax.ShapeDtypeStruct((rows, width // settings.head_dim, 1, length), jnp.float32)
  arrays = _inputs(settings, part, query, key, value, bias, fixed)
  out = jax.ShapeDtypeStruct((rows, length, width), query.dtype)
  return tuple(_over_tokens("forward", settings, bias is not None, arrays, (out, lse)))


def backward(settings: Settings, part, query, key, value, bias, fixed, out, lse, given) -> tuple:
  """The gradients of query, key, value, bias and of what was added to query, key and value everywhere."""
  rows, length, width = out.shape
  heads = width // settings.head_dim
  inner = given.astype(jnp.float32) * out.astype(jnp.float32)
  inner = jnp.moveaxis(jnp.sum(jnp.reshape(inner, (rows, length, heads, -1)), axis=-1), 1, 2)
  blocks, is_packed = -(-length // BLOCK), key is None
  like, nothing = jax.ShapeDtypeStruct(query.shape, query.dtype), jax.ShapeDtypeStruct((1,), query.dtype)
  d_scores = jax.ShapeDtypeStruct((rows, heads, blocks * BLOCK, blocks * BLOCK), query.dtype)
  turned = None if bias is None else jnp.flip(bias, 1)  # of blocks of keys and tiles of queries
  arrays = *_inputs(settings, part, query, key, value, turned, fixed), given, lse, inner
  wanted = (like, nothing if is_packed else like, d_scores)
  d_key, d_value, d_scores = _over_tokens("backward_key", settings, bias is not None, arrays, wanted)
  facts, with_keys = arrays[5], d_key if is_packed else jnp.zeros(1, query.dtype)
  d_query = _d_query(settings, query if is_packed else key, facts, d_scores, with_keys, is_packed)
  d_bias = None if bias is None else _d_bias(d_scores, length).astype(bias.dtype)
  gradients = (d_query, None, None) if is_packed else (d_query, d_key, d_value)
  d_added = [jnp.sum(x.astype(jnp.float32), axis=(0, 1)) for x in gradients if x is not None]
  return *gradients, d_bias, jnp.reshape(jnp.stack(d_added), (3, width))


def _sizes(query: jax.Array, key: jax.Array | None) -> tuple[int, int, int]:
  """Rows, tokens of each, and heads * head_dim."""
  return *query.shape[:2], query.shape[2] // (3 if key is None else 1)


def _inputs(settings: Settings, part, query, key, value, bias, fixed: Fixed) -> tuple:
  """What the kernels that compute scores read, in their order."""
  rows, length, width = _sizes(query, key)
  if key is None:
    key = value = query
  heads = width // settings.head_dim
  segments = fixed.segment_ids
  end, whole = jnp.full((rows,), length), jnp.zeros((rows,), jnp.int32)
  if segments is None:
    segments = jnp.zeros((rows, length), jnp.int32)
    if settings.window is None:  # each query has keys, or none of the row has: then all average over all
      end = jnp.max(jnp.where(fixed.key_mask, jnp.arange(1, length + 1), 0), axis=1)
      end = jnp.where(end == 0, length, end)
      whole = jnp.sum(jnp.cumprod(fixed.key_mask, axis=1, dtype=jnp.int32), axis=1)
  groups = jnp.stack([segments, jnp.where(fixed.key_mask, segments, _NO_GROUP)], axis=1)
  tiles = jnp.zeros((1, 1, BLOCK, BLOCK)) if bias is None else _tiles(bias, length, TILE)
  arrays = query, key, value, tiles, groups, jnp.stack([end, whole], axis=1)
  of_queries, of_keys = _words(fixed.words, part * heads, heads, length)
  return *arrays, of_queries, of_keys, jnp.full((1,), part * heads)


def _tiles(bias: jax.Array, length: int, size: int) -> jax.Array:
  """[heads, tiles, BLOCK, size] float32, the bias of blocks of queries and tiles of keys for the kernels."""
  blocks, at = -(-length // BLOCK), np.arange(BLOCK)
  apart = np.arange((1 - blocks) * BLOCK, blocks * BLOCK, size)[:, None, None]
  places = np.clip(
    apart + at[:size] - at[:, None] + length - 1, 0, 2 * length - 2
  )  # behind the row: not read
  return math.log2(math.e) * bias.astype(jnp.float32)[:, places]


def _words(
  words: jax.Array | None, first: jax.Array | int, heads: int, length: int
) -> tuple[jax.Array, jax.Array]:
  """The dropout's words of queries, [rows, pairs of heads, length], and of keys, [length], both int32."""
  if words is None:
    return jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros(length, jnp.int32)
  pairs = (heads // 2 + 1, length)
  start = jnp.asarray(first).astype(jnp.uint32) >> 1
  of_queries = row_random.row_bits(words, pairs, start=start)
  of_keys = row_random.column_words(length)
  return tuple(
    jax.lax.bitcast_convert_type(row_random.half_mixed(jnp.asarray(array)), jnp.int32)
    for array in (of_queries, of_keys)
  )


def _over_tokens(
  kernel: str, settings: Settings, biased: bool, arrays: Sequence, results: Sequence
) -> Sequence[jax.Array]:
  """Runs `forward` or `backward_key` over the blocks of tokens of each row and head."""
  is_packed = arrays[0] is arrays[1]
  rows, length, width = _sizes(arrays[0], None if is_packed else arrays[1])
  constants = _constants(settings, length, width, arrays[0].dtype) | {
    "biased": biased,
    "window": -1 if settings.window is None else settings.window,
    "limit": int(row_random.pair_limit(settings.dropout_rate)),
    "keeps": 1.0 - settings.dropout_rate,
    "packed": is_packed,
    "keys" if kernel == "forward" else "queries": TILE,
  }
  # Measured on an H200 with heads of 64; twice as wide ones in three stages do not fit smaller GPUs.
  warps, stages = (4, 3) if constants["lanes"] <= 64 else (8, 2)
  module = f"attention_triton_{'' if kernel == 'forward' else 'backward_'}kernels"
  launch = Launch(rows * constants["heads"] * -(-length // BLOCK), warps, stages)
  return triton_call.call(f"{module}.{kernel}", arrays, results, launch, constants)


def _constants(settings: Settings, length: int, width: int, dtype: jnp.dtype) -> dict:
  """What a kernel knows of the arrays when it is compiled."""
  return {
    "length": length,
    "heads": width // settings.head_dim,
    "head_dim": settings.head_dim,
    "lanes": max(16, 1 << (settings.head_dim - 1).bit_length()),
    "precision": "ieee" if dtype == jnp.float32 else "tf32",  # of no meaning for bfloat16
  }


def _d_query(settings: Settings, key, facts, d_scores, with_keys, is_packed: bool) -> jax.Array:
  """The gradient of the queries; if packed, in the array `with_keys`, which has the others."""
  rows, length, width = _sizes(key, None if is_packed else key)
  constants = _constants(settings, length, width, key.dtype) | {"packed": is_packed, "keys": BLOCK}
  launch = Launch(rows * constants["heads"] * -(-length // BLOCK), 4, 3, ((3, 0),) if is_packed else ())
  like = jax.ShapeDtypeStruct(key.shape, key.dtype)
  arrays = key, facts, d_scores, with_keys
  (d_query,) = triton_call.call(
    "attention_triton_backward_kernels.backward_query", arrays, (like,), launch, constants
  )
  return d_query


def _d_bias(d_scores: jax.Array, length: int) -> jax.Array:
  """[heads, 2 length - 1] float32, the gradient of the bias of each distance."""
  rows, heads, padded, _ = d_scores.shape
  blocks = padded // BLOCK
  constants = {"rows": rows, "length": length, "heads": heads}
  diagonals = jax.ShapeDtypeStruct((heads, blocks, blocks, 2 * BLOCK), jnp.float32)
  (diagonals,) = triton_call.call(
    "attention_triton_backward_kernels.backward_bias",
    (d_scores,),
    (diagonals,),
    Launch(heads * blocks**2, 4, 4),
    constants,
  )
  return _by_distance(diagonals, length)


def _by_distance(diagonals: jax.Array, length: int) -> jax.Array:
  """[heads, blocks of keys, blocks of queries, 2 BLOCK] to [heads, 2 length - 1]: sums over tiles."""
  heads, blocks = diagonals.shape[:2]
  apart = np.arange(blocks)[:, None] - np.arange(blocks)[None, :]
  is_apart = (np.arange(1 - blocks, blocks)[:, None, None] == apart).astype(np.float32)
  sums = jnp.einsum("hkqd,akq->had", diagonals, is_apart, precision=jax.lax.Precision.HIGHEST)
  # Tiles a block farther apart begin a block later: their first half lies on the second of those before.
  sums = jnp.pad(sums[..., :BLOCK], ((0, 0), (0, 1), (0, 0))) + jnp.pad(
    sums[..., BLOCK:], ((0, 0), (1, 0), (0, 0))
  )
  first = blocks * BLOCK - length
  return jnp.reshape(sums, (heads, -1))[:, first : first + 2 * length - 1]
