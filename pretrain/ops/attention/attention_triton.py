"""Attention on NVIDIA GPUs: prepares one device's arrays for `attention_triton_kernels`."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import platforms, row_random
from pretrain.ops.attention.attention_inputs import NO_GROUP, Fixed, Settings, tiles_read
from pretrain.ops.platforms import Launch

BLOCK = 64  # queries or keys of a block, as in the kernels
_KEYS = 32  # keys of a tile in `attention_forward`
_ROWS = 8  # rows that one program of `attention_bias` sums
_FORWARD, _BACKWARD = "attention.attention_triton_kernels", "attention.attention_triton_backward_kernels"
_SHORT = 1_024  # tokens of rows whose gradients of scores are stored: a square of each row and head


def forward(settings: Settings, part, query, key, value, bias, fixed) -> tuple[jax.Array, ...]:
  """Computes attention [rows, length, heads * head_dim], and small arrays that `backward` needs.

  Without `key` and `value`, `query` has all three side by side. The small arrays are the logarithm of each
  query's sum of exponentials, the bias in tiles for `attention_keys`, and facts about rows and tokens.
  """
  rows, length, width = _sizes(query, key)
  lse = jax.ShapeDtypeStruct((rows, width // settings.head_dim, 1, length), jnp.float32)
  is_stored = _is_stored(settings, length, bias, fixed.segment_ids)
  of_tokens = _of_tokens(settings, part, rows, length, width, fixed, is_stored)
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
  segment_ids = fixed.segment_ids  # `forward` saved the other parts that are needed
  rows, length, width = out.shape
  heads, blocks, is_packed = width // settings.head_dim, -(-length // BLOCK), key is None
  inner = given.astype(jnp.float32) * out.astype(jnp.float32)
  inner = jnp.moveaxis(jnp.sum(jnp.reshape(inner, (rows, length, heads, -1)), axis=-1), 1, 2)
  of_tokens = groups, facts, of_queries, of_keys
  arrays = *_wide(query, key, value), tiles, *of_tokens, _first_head(settings, part, width), given, lse, inner
  like, nothing = jax.ShapeDtypeStruct(query.shape, query.dtype), jax.ShapeDtypeStruct((1,), query.dtype)
  d_scores = jax.ShapeDtypeStruct((rows, heads, blocks * BLOCK, blocks * BLOCK), query.dtype)
  is_stored = _is_stored(settings, length, bias, segment_ids)
  sums = jax.ShapeDtypeStruct((rows, blocks, 3, width), jnp.float32)
  wanted = like, nothing if is_packed else like, d_scores if is_stored else nothing, sums
  has_bias = bias is not None
  d_key, d_value, d_scores, sums = _over_tokens("attention_keys", settings, has_bias, arrays, wanted)
  with_keys = d_key if is_packed else jnp.zeros(1, query.dtype)
  if is_stored:
    d_query, sums = _d_query(settings, query if is_packed else key, facts, d_scores, with_keys, sums)
  else:
    again = *arrays[:3], *arrays[4:], with_keys, sums  # without the bias
    aliases = ((12, 1), (11, 0)) if is_packed else ((12, 1),)
    wanted = like, jax.ShapeDtypeStruct(sums.shape, sums.dtype)
    d_query, sums = _over_tokens("attention_queries_again", settings, False, again, wanted, aliases)
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


def _is_masked(settings: Settings, segment_ids: jax.Array | None) -> bool:
  return settings.window is not None or segment_ids is not None


def _is_stored(
  settings: Settings, length: int, bias: jax.Array | None, segment_ids: jax.Array | None
) -> bool:
  """Returns whether gradients of scores are stored: the bias needs them, and otherwise it saves time."""
  return bias is not None or (length <= _SHORT and not _is_masked(settings, segment_ids))


def _of_tokens(
  settings: Settings, part, rows: int, length: int, width: int, fixed: Fixed, is_stored: bool
) -> tuple:
  """Returns the kernels' small arrays of rows and tokens: groups, facts, of_queries and of_keys."""
  heads, blocks = width // settings.head_dim, -(-length // BLOCK)
  segments = jnp.zeros((rows, length), jnp.int32) if fixed.segment_ids is None else fixed.segment_ids
  groups = jnp.stack([segments, jnp.where(fixed.key_mask, segments, NO_GROUP)], axis=1)
  starts, padded = np.arange(blocks) * BLOCK, blocks * BLOCK
  nothing, everything = jnp.zeros((rows, blocks), jnp.int32), jnp.full((rows, blocks), padded)
  if _is_masked(settings, fixed.segment_ids):
    of_keys = jnp.pad(groups[:, 1], ((0, 0), (0, padded - length)), constant_values=NO_GROUP)
    first, end = (BLOCK * at for at in tiles_read(of_keys, settings.window, block=BLOCK, tile=BLOCK))
    if is_stored:  # of the whole square of scores, since all of it is added up
      first, end = nothing, everything
    queries = jnp.stack([first, first, jnp.minimum(end, length)], axis=-1)
    keys = jnp.stack([first, first, end], axis=-1)
  else:  # a row without any key averages over all tokens
    end = jnp.max(jnp.where(fixed.key_mask, jnp.arange(1, length + 1), 0), axis=1, keepdims=True)
    end = jnp.where(end == 0, length, end)
    whole = jnp.sum(jnp.cumprod(fixed.key_mask, axis=1, dtype=jnp.int32), axis=1, keepdims=True)
    queries = jnp.stack([nothing, whole // _KEYS * _KEYS + nothing, end + nothing], axis=-1)
    ends = [starts + BLOCK <= whole, starts < end]
    keys = jnp.stack([nothing, *(jnp.where(each, everything, 0) for each in ends)], axis=-1)
  facts = jnp.stack([queries, keys], axis=1).astype(jnp.int32)
  return groups, facts, *_words(fixed.words, part * heads, heads, length)


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
  kernel: str, settings: Settings, biased: bool, arrays: Sequence, results: Sequence, aliases: tuple = ()
) -> Sequence[jax.Array]:
  """Runs a kernel over the blocks of tokens of each row and head; not `attention_queries`."""
  is_packed = arrays[0] is arrays[1]
  rows, length, width = _sizes(arrays[0], None if is_packed else arrays[1])
  constants = _constants(settings, length, width, arrays[0].dtype) | {
    "window": -1 if settings.window is None else settings.window,
    "limit": int(row_random.pair_limit(settings.dropout_rate)),
    "keeps": 1.0 - settings.dropout_rate,
    "packed": is_packed,
  }
  if kernel == "attention_queries_again":
    constants |= {"keys": _KEYS}
  elif kernel == "attention_forward":
    constants |= {"biased": biased, "keys": _KEYS}
  else:
    constants |= {"biased": biased, "queries": _queries(settings.head_dim), "stored": results[2].ndim > 1}
  # Measured on an H200 with heads of 64. Wider heads with three stages do not fit smaller GPUs.
  warps, stages = (4, 3) if constants["lanes"] <= 64 else (8, 2)
  module = _FORWARD if kernel == "attention_forward" else _BACKWARD
  launch = Launch(rows * constants["heads"] * -(-length // BLOCK), warps, stages, aliases)
  return platforms.call_triton(f"{module}.{kernel}", arrays, results, launch, constants)


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
  return platforms.call_triton(f"{_BACKWARD}.attention_queries", arrays, tuple(results), launch, constants)


def _d_bias(d_scores: jax.Array, length: int) -> jax.Array:
  """Returns the gradient of the bias for each distance, [heads, 2 length - 1] float32."""
  rows, heads, padded, _ = d_scores.shape
  parts, diagonals = -(-rows // _ROWS), 2 * (padded // BLOCK) - 1
  sums = jax.ShapeDtypeStruct((parts, heads, diagonals, 2 * BLOCK), jnp.float32)
  constants = {"rows": rows, "length": length, "heads": heads, "at_once": _ROWS}
  launch = Launch(parts * heads * diagonals, 4)
  (sums,) = platforms.call_triton(f"{_BACKWARD}.attention_bias", (d_scores,), (sums,), launch, constants)
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
