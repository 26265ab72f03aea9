"""Attention on NVIDIA GPUs: prepares one device's arrays for `attention_triton_kernels`."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import triton_call
from pretrain.ops.attention.attention_inputs import Fixed, Settings
from pretrain.ops.draws import row_random
from pretrain.ops.triton_call import Launch

BLOCK = 64  # queries or keys of a block, as in the kernels
_KEYS = 32  # keys of a tile in `attention_forward`
_ROWS = 8  # rows that one program of `attention_bias` sums
_FORWARD, _BACKWARD = "attention.attention_triton_kernels", "attention.attention_triton_backward_kernels"
_NO_GROUP = np.iinfo(np.int32).min  # the segment of masked keys


def forward(settings: Settings, part, query, key, value, bias, fixed) -> tuple[jax.Array, ...]:
  """Computes attention [rows, length, heads * head_dim], and small arrays that `backward` needs.

  Without `key` and `value`, `query` has all three side by side. The small arrays are the logarithm of each
  query's sum of exponentials, the bias in tiles for `attention_keys`, and facts about rows and tokens.
  """
  rows, length, width = _sizes(query, key)
  lse = jax.ShapeDtypeStruct((rows, width // settings.head_dim, 1, length), jnp.float32)
  of_tokens = _of_tokens(settings, part, rows, length, width, fixed)
  arrays = (
    *_wide(query, key, value),
    _tiles(bias, length, _KEYS),
    *of_tokens,
    _first_head(settings, part, width),
  )
  out = jax.ShapeDtypeStruct((rows, length, width), query.dtype)
  turned = None if bias is None else jnp.flip(bias, 1)  # for blocks of keys and tiles of queries
  made = _over_tokens("attention_forward", settings, bias is not None, arrays, (out, lse))
  return *made, _tiles(turned, length, _queries(settings.head_dim)), *of_tokens


def backward(
  settings: Settings, part, query, key, value, bias, fixed, out,
  lse, tiles, groups, facts, of_queries, of_keys, given,
) -> tuple:  # fmt: skip
  """Returns gradients of query, key, value, bias, and of biases added to query, key and value."""
  del fixed  # `forward` saved its needed parts
  rows, length, width = out.shape
  heads, blocks, is_packed = width // settings.head_dim, -(-length // BLOCK), key is None
  inner = given.astype(jnp.float32) * out.astype(jnp.float32)
  inner = jnp.moveaxis(jnp.sum(jnp.reshape(inner, (rows, length, heads, -1)), axis=-1), 1, 2)
  of_tokens = groups, facts, of_queries, of_keys
  arrays = *_wide(query, key, value), tiles, *of_tokens, _first_head(settings, part, width), given, lse, inner
  like, nothing = jax.ShapeDtypeStruct(query.shape, query.dtype), jax.ShapeDtypeStruct((1,), query.dtype)
  d_scores = jax.ShapeDtypeStruct((rows, heads, blocks * BLOCK, blocks * BLOCK), query.dtype)
  sums = jax.ShapeDtypeStruct((rows, blocks, 3, width), jnp.float32)
  wanted = like, nothing if is_packed else like, d_scores, sums
  d_key, d_value, d_scores, sums = _over_tokens("attention_keys", settings, bias is not None, arrays, wanted)
  with_keys = d_key if is_packed else jnp.zeros(1, query.dtype)
  d_query, sums = _d_query(settings, query if is_packed else key, facts, d_scores, with_keys, sums)
  d_bias = None if bias is None else _d_bias(d_scores, length).astype(bias.dtype)
  gradients = (d_query, None, None) if is_packed else (d_query, d_key, d_value)
  return *gradients, d_bias, jnp.sum(sums, axis=(0, 1))


def _sizes(query: jax.Array, key: jax.Array | None) -> tuple[int, int, int]:
  rows, length, width = query.shape
  return rows, length, width // (3 if key is None else 1)


def _wide(query: jax.Array, key: jax.Array | None, value: jax.Array | None) -> tuple:
  return (query, query, query) if key is None else (query, key, value)


def _first_head(settings: Settings, part, width: int) -> jax.Array:
  """Returns the number of this device's first head, [1] int32."""
  return jnp.full((1,), part * (width // settings.head_dim))


def _of_tokens(settings: Settings, part, rows: int, length: int, width: int, fixed: Fixed) -> tuple:
  """Returns the kernels' small arrays of rows and tokens: groups, facts, of_queries and of_keys."""
  heads = width // settings.head_dim
  segments = fixed.segment_ids
  end, whole = jnp.full((rows,), length), jnp.zeros((rows,), jnp.int32)
  if segments is None:
    segments = jnp.zeros((rows, length), jnp.int32)
    if settings.window is None:  # a row without any key averages over all tokens
      end = jnp.max(jnp.where(fixed.key_mask, jnp.arange(1, length + 1), 0), axis=1)
      end = jnp.where(end == 0, length, end)
      whole = jnp.sum(jnp.cumprod(fixed.key_mask, axis=1, dtype=jnp.int32), axis=1)
  groups = jnp.stack([segments, jnp.where(fixed.key_mask, segments, _NO_GROUP)], axis=1)
  return groups, jnp.stack([end, whole], axis=1), *_words(fixed.words, part * heads, heads, length)


def _tiles(bias: jax.Array | None, length: int, size: int) -> jax.Array:
  """Returns [heads, tiles, BLOCK, size] float32, the bias of blocks of queries and tiles of keys."""
  if bias is None:
    return jnp.zeros((1, 1, BLOCK, size))
  blocks, at = -(-length // BLOCK), np.arange(BLOCK)
  apart = np.arange((1 - blocks) * BLOCK, blocks * BLOCK, size)[:, None, None]
  places = np.clip(
    apart + at[:size] - at[:, None] + length - 1, 0, 2 * length - 2
  )  # beyond the row nothing is read
  return math.log2(math.e) * bias.astype(jnp.float32)[:, places]


def _words(
  words: jax.Array | None, first: jax.Array | int, heads: int, length: int
) -> tuple[jax.Array, jax.Array]:
  """Returns dropout's words of queries, [rows, pairs of heads, length], and of keys, [length], both int32."""
  if words is None:
    return jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros(length, jnp.int32)
  pairs = (heads // 2 + 1, length)
  start = jnp.asarray(first).astype(jnp.uint32) >> 1
  of_queries = row_random.row_bits(words, pairs, start=start)
  of_keys = row_random.column_words(length)
  of_queries, of_keys = (row_random.half_mixed(jnp.asarray(array)) for array in (of_queries, of_keys))
  return jax.lax.bitcast_convert_type(of_queries, jnp.int32), jax.lax.bitcast_convert_type(of_keys, jnp.int32)


def _over_tokens(
  kernel: str, settings: Settings, biased: bool, arrays: Sequence, results: Sequence
) -> Sequence[jax.Array]:
  """Runs `attention_forward` or `attention_keys` over the blocks of tokens of each row and head."""
  is_packed = arrays[0] is arrays[1]
  rows, length, width = _sizes(arrays[0], None if is_packed else arrays[1])
  constants = _constants(settings, length, width, arrays[0].dtype) | {
    "biased": biased,
    "window": -1 if settings.window is None else settings.window,
    "limit": int(row_random.pair_limit(settings.dropout_rate)),
    "keeps": 1.0 - settings.dropout_rate,
    "packed": is_packed,
    **({"keys": _KEYS} if kernel == "attention_forward" else {"queries": _queries(settings.head_dim)}),
  }
  # Measured on an H200 with heads of 64. Wider heads with three stages do not fit smaller GPUs.
  warps, stages = (4, 3) if constants["lanes"] <= 64 else (8, 2)
  module = _FORWARD if kernel == "attention_forward" else _BACKWARD
  launch = Launch(rows * constants["heads"] * -(-length // BLOCK), warps, stages)
  return triton_call.call(f"{module}.{kernel}", arrays, results, launch, constants)


def _queries(head_dim: int) -> int:
  """Returns the queries of a tile in `attention_keys`: the fastest number that fits the smallest GPUs."""
  return 64 if head_dim <= 64 else 32


def _constants(settings: Settings, length: int, width: int, dtype: jnp.dtype) -> dict:
  return {
    "length": length,
    "heads": width // settings.head_dim,
    "head_dim": settings.head_dim,
    "lanes": max(16, 1 << (settings.head_dim - 1).bit_length()),
    "precision": "ieee" if dtype == jnp.float32 else "tf32",  # without effect for bfloat16
  }


def _d_query(settings: Settings, key, facts, d_scores, with_keys, sums) -> Sequence[jax.Array]:
  """Computes the gradient of queries and completes `sums`; if packed, it is written into `with_keys`."""
  is_packed = with_keys.ndim > 1
  rows, length, width = _sizes(key, None if is_packed else key)
  constants = _constants(settings, length, width, key.dtype) | {"packed": is_packed, "keys": BLOCK}
  aliases = ((4, 1), (3, 0)) if is_packed else ((4, 1),)
  launch = Launch(rows * constants["heads"] * -(-length // BLOCK), 4, 3, aliases)
  results = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (key, sums))
  arrays = key, facts, d_scores, with_keys, sums
  return triton_call.call(f"{_BACKWARD}.attention_queries", arrays, tuple(results), launch, constants)


def _d_bias(d_scores: jax.Array, length: int) -> jax.Array:
  """Returns the gradient of the bias for each distance, [heads, 2 length - 1] float32."""
  rows, heads, padded, _ = d_scores.shape
  parts, diagonals = -(-rows // _ROWS), 2 * (padded // BLOCK) - 1
  sums = jax.ShapeDtypeStruct((parts, heads, diagonals, 2 * BLOCK), jnp.float32)
  constants = {"rows": rows, "length": length, "heads": heads, "at_once": _ROWS}
  launch = Launch(parts * heads * diagonals, 4)
  (sums,) = triton_call.call(f"{_BACKWARD}.attention_bias", (d_scores,), (sums,), launch, constants)
  return _by_distance(jnp.sum(sums, axis=0), length)


def _by_distance(diagonals: jax.Array, length: int) -> jax.Array:
  """Adds up tiles [heads, 2 blocks - 1, 2 BLOCK] by distance: [heads, 2 length - 1]."""
  heads, tiles = diagonals.shape[:2]
  # Tiles one block farther apart begin one block later: their first half overlaps the previous second half.
  sums = jnp.pad(diagonals[..., :BLOCK], ((0, 0), (0, 1), (0, 0))) + jnp.pad(
    diagonals[..., BLOCK:], ((0, 0), (1, 0), (0, 0))
  )
  first = (tiles + 1) // 2 * BLOCK - length
  return jnp.reshape(sums, (heads, -1))[:, first : first + 2 * length - 1]
