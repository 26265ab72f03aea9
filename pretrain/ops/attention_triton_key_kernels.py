"""The Triton kernels of attention that hold keys: see `attention_triton_kernels`."""

import triton
import triton.language as tl

from pretrain.ops.attention_triton_tiles import (
  BLOCK,
  LOG2_E,
  MASKED,
  NO_KEY,
  block_of,
  dropped,
  of_head,
  put,
  scaled_query,
  taken,
  taken_bias,
  tiles_of_bias,
  word,
  words_of_head,
)


@triton.jit
def _put_diagonals(tile, array):
  """Sums along the diagonals of a tile [BLOCK, BLOCK]: element key - query + BLOCK - 1 of `array`.

  Row k, turned by k, has a diagonal in every column: one of this side of the tile and one of the other.
  """
  at = tl.arange(0, BLOCK)
  behind = at[:, None] - at[None, :] - 1
  columns = tl.gather(tile, (behind + 2 * BLOCK) % BLOCK, 1)
  tl.store(array + at, tl.sum(tl.where(behind < 0, columns, 0.0), 0))
  tl.store(array + BLOCK + at, tl.sum(tl.where(behind < 0, 0.0, columns), 0))


@triton.jit
def _key_tile(
  start, block, values, key_at, of_key, of_group, is_odd, query, given, lse, inner, bias, groups, of_queries,
  length: tl.constexpr, width: tl.constexpr, apart: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr,
  biased: tl.constexpr, window: tl.constexpr, limit: tl.constexpr, keeps: tl.constexpr,
  precision: tl.constexpr, queries: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
  """What a tile of queries has for a block of keys: the queries and the gradients of what they attended to,
  both [queries, lanes], the weights after dropout and the gradients of the scores, both [BLOCK, queries]."""
  query_at = start + tl.arange(0, queries)
  real = query_at < length
  scaled = scaled_query(block_of(query, query_at, length, apart, head_dim, lanes), head_dim)
  gradient = block_of(given, query_at, length, width, head_dim, lanes)
  sums = taken(lse, query_at, real, length)[None, :]
  delta = taken(inner, query_at, real, length)[None, :]
  scores = tl.dot(block, tl.trans(scaled), input_precision=precision) * LOG2_E + bias
  if masked:
    allowed = of_group == taken(groups, query_at, real, length)[None, :]
    if window >= 0:
      allowed = allowed & (tl.abs(key_at[:, None] - query_at[None, :]) <= window)
    scores = tl.where(allowed, scores, MASKED)
    if length % 128 != 0:
      scores = tl.where((key_at < length)[:, None], scores, float("-inf"))
  weights = tl.exp2(scores - sums)
  of_query = word(of_queries, query_at, real, length, limit)[None, :]
  d_weights = tl.dot(values, tl.trans(gradient), input_precision=precision)
  d_weights = dropped(d_weights, of_query, of_key, is_odd, limit, keeps)
  d_scores = weights * (d_weights - delta)
  if masked:
    d_scores = tl.where(sums > NO_KEY, d_scores, 0.0)
    # A query without keys averages: from its sum every weight comes out as 1.
    weights = tl.where(sums > NO_KEY, weights, weights * (1 / length))
  return scaled, gradient, dropped(weights, of_query, of_key, is_odd, limit, keeps), d_scores


@triton.jit
def _add_key_tile(
  state, start, block, values, key_at, of_key, of_group, is_odd, query, given, lse, inner, bias, groups,
  of_queries,
  length: tl.constexpr, width: tl.constexpr, apart: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr,
  biased: tl.constexpr, window: tl.constexpr, limit: tl.constexpr, keeps: tl.constexpr,
  precision: tl.constexpr, queries: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
  """The gradients of a block of keys and of their values with those of one more tile of queries."""
  d_block, d_values = state
  bias = taken_bias(bias + start // queries * (BLOCK * queries), biased)
  scaled, gradient, weights, d_scores = _key_tile(
    start, block, values, key_at, of_key, of_group, is_odd, query, given, lse, inner, bias, groups,
    of_queries, length, width, apart, head_dim, lanes, biased, window, limit, keeps, precision, queries,
    masked,
  )  # fmt: skip
  d_values = tl.dot(weights.to(gradient.dtype), gradient, d_values, input_precision=precision)
  d_block = tl.dot(d_scores.to(scaled.dtype), scaled, d_block, input_precision=precision)
  return d_block, d_values


@triton.jit
def backward_key(
  query, key, value, bias, groups, facts, of_queries, of_keys, first,
  given,
  lse,
  inner,
  d_key,  # if packed: the array that has all three
  d_value,
  length: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr,
  lanes: tl.constexpr,
  biased: tl.constexpr,
  window: tl.constexpr,
  limit: tl.constexpr,
  keeps: tl.constexpr,
  precision: tl.constexpr,
  packed: tl.constexpr,
  queries: tl.constexpr,  # of a tile
):  # fmt: skip
  """The gradients of a block of keys and of their values."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  apart: tl.constexpr = 3 * width if packed else width
  query, key, value = of_head(query, key, value, row, head, length, width, head_dim, packed)
  gradients = given + row.to(tl.int64) * length * width + head * head_dim
  groups, facts = groups + 2 * row * length, facts + 2 * row
  lse, inner = lse + at_head * length, inner + at_head * length
  key_at = tile * BLOCK + tl.arange(0, BLOCK)
  block = block_of(key, key_at, length, apart, head_dim, lanes)
  values = block_of(value, key_at, length, apart, head_dim, lanes)
  of_queries, is_odd = words_of_head(of_queries, first, row, head, length, heads)
  of_key = word(of_keys, key_at, key_at < length, length, limit)[:, None]
  of_group = taken(groups + length, key_at, key_at < length, length)[:, None]
  bias = tiles_of_bias(bias, head, tile, length, queries)
  state = tl.zeros([BLOCK, lanes], tl.float32), tl.zeros([BLOCK, lanes], tl.float32)
  end = tl.where(tile * BLOCK < tl.load(facts), length, 0)
  whole = tl.where((tile + 1) * BLOCK <= tl.load(facts + 1), length, 0)
  for start in range(0, whole, queries):
    state = _add_key_tile(
      state, start, block, values, key_at, of_key, of_group, is_odd, query, gradients, lse, inner,
      bias, groups, of_queries, length, width, apart, head_dim, lanes, biased, window, limit, keeps,
      precision, queries, False,
    )  # fmt: skip
  for start in range(whole, end, queries):
    state = _add_key_tile(
      state, start, block, values, key_at, of_key, of_group, is_odd, query, gradients, lse, inner,
      bias, groups, of_queries, length, width, apart, head_dim, lanes, biased, window, limit, keeps,
      precision, queries, True,
    )  # fmt: skip
  d_block, d_values = state
  _, d_key, d_value = of_head(d_key, d_key, d_value, row, head, length, width, head_dim, packed)
  put(d_key, d_block, key_at, length, apart, head_dim, lanes)
  put(d_value, d_values, key_at, length, apart, head_dim, lanes)


@triton.jit
def backward_bias(
  query, key, value, bias, groups, facts, of_queries, of_keys, first,
  given,
  lse,
  inner,
  diagonals,  # [heads, blocks of keys, blocks of queries, 2 BLOCK] float32
  rows: tl.constexpr,
  length: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr,
  lanes: tl.constexpr,
  biased: tl.constexpr,
  window: tl.constexpr,
  limit: tl.constexpr,
  keeps: tl.constexpr,
  precision: tl.constexpr,
  packed: tl.constexpr,
):  # fmt: skip
  """The gradient of the bias of a block of keys and one of queries, summed over rows and along diagonals."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  tile, at_key = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  head, at_key = at_key // blocks, at_key % blocks
  width: tl.constexpr = heads * head_dim
  apart: tl.constexpr = 3 * width if packed else width
  key_at = at_key * BLOCK + tl.arange(0, BLOCK)
  of_key = word(of_keys, key_at, key_at < length, length, limit)[:, None]
  bias = tl.load(tiles_of_bias(bias, head, at_key - tile, length, BLOCK))
  summed = tl.zeros([BLOCK, BLOCK], tl.float32)
  for number in range(rows):
    row = tl.full([], number, tl.int64)
    queries, block, values = of_head(query, key, value, row, head, length, width, head_dim, packed)
    block = block_of(block, key_at, length, apart, head_dim, lanes)
    values = block_of(values, key_at, length, apart, head_dim, lanes)
    of_row = groups + 2 * row * length
    of_group = taken(of_row + length, key_at, key_at < length, length)[:, None]
    words, is_odd = words_of_head(of_queries, first, row, head, length, heads)
    gradients, of_sums = given + row * length * width + head * head_dim, (row * heads + head) * length
    _, _, _, d_scores = _key_tile(
      tile * BLOCK, block, values, key_at, of_key, of_group, is_odd, queries, gradients, lse + of_sums,
      inner + of_sums, bias, of_row, words, length, width, apart, head_dim, lanes, biased, window, limit,
      keeps, precision, BLOCK, True,
    )  # fmt: skip
    summed += d_scores
  _put_diagonals(summed, diagonals + tl.program_id(0) * 2 * BLOCK)
