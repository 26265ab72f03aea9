"""The Triton kernels of attention's gradients. `attention_triton_kernels` describes their other arguments.

`attention_keys` holds a block of keys and iterates over the row's queries. It recomputes the probabilities
from the logarithm of each query's sum, redraws the dropout, and writes the gradients of the scores, because
computing them again costs more than writing them. `attention_queries` multiplies them with the keys.
`attention_bias` sums them over rows and along diagonals, in an order that does not depend on which program
runs first.

  given: [rows, length, heads * head_dim], the gradient of the attention output.
  lse, inner: [rows, heads, length] float32, written by `attention_forward`, and the sums of `given` times
    the attention output over the head.
  d_scores: [rows, heads, padded, padded] in the query's dtype, of (key, query); a row of `length` tokens is
    padded to whole blocks. 0 for keys outside the row. Not `stored`: one number that nothing reads.
  sums: [rows, blocks, 3, heads * head_dim] float32, sums of the gradients of queries, keys and values over
    the tokens of a block.
"""

import triton
import triton.language as tl

from pretrain.ops.attention.attention_triton_kernels import (
  BLOCK,
  LOG2_E,
  MASKED,
  NO_KEY,
  block_of,
  dropped,
  masked_scores,
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
def _put_sum(array, block, head_dim: tl.constexpr, lanes: tl.constexpr):
  lane = tl.arange(0, lanes)
  tl.store(array + lane, tl.sum(block, 0), mask=lane < head_dim)


@triton.jit
def _put_diagonals(tile, array):
  """Writes sums along the diagonals of a tile [BLOCK, BLOCK], at key - query + BLOCK - 1 of `array`.

  After rotating row k by k, every column has parts of two diagonals, one from each side of the tile.
  """
  at = tl.arange(0, BLOCK)
  behind = at[:, None] - at[None, :] - 1
  columns = tl.gather(tile, (behind + 2 * BLOCK) % BLOCK, 1)
  tl.store(array + at, tl.sum(tl.where(behind < 0, columns, 0.0), 0))
  tl.store(array + BLOCK + at, tl.sum(tl.where(behind < 0, 0.0, columns), 0))


@triton.jit
def _key_tile(
  state, start, block, values, key_at, of_key, of_group, is_odd, query, given, lse, inner, bias, groups,
  of_queries, d_scores,
  length: tl.constexpr, width: tl.constexpr, apart: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr,
  biased: tl.constexpr, window: tl.constexpr, limit: tl.constexpr, keeps: tl.constexpr,
  precision: tl.constexpr, queries: tl.constexpr, stored: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
  """Adds the gradients from one tile of queries to those of a block of keys and their values."""
  d_block, d_values = state
  query_at = start + tl.arange(0, queries)
  real = query_at < length
  scaled = scaled_query(block_of(query, query_at, length, apart, head_dim, lanes), head_dim)
  gradient = block_of(given, query_at, length, width, head_dim, lanes)
  sums = taken(lse, query_at, real, length)[None, :]
  delta = taken(inner, query_at, real, length)[None, :]
  scores = tl.dot(block, tl.trans(scaled), input_precision=precision)
  scores = scores * LOG2_E + taken_bias(bias + start // queries * (BLOCK * queries), biased)
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
  d_weights = dropped(d_weights * (1 / keeps), of_query, of_key, is_odd, limit)
  d_tile = weights * (d_weights - delta)
  if masked:
    d_tile = tl.where(sums > NO_KEY, d_tile, 0.0)
    # A query without keys averages over the row, but its sum makes every weight 1.
    weights = tl.where(sums > NO_KEY, weights, weights * (1 / length))
  weights = dropped(weights, of_query, of_key, is_odd, limit)
  d_tile = d_tile.to(scaled.dtype)
  if stored:
    tl.store(d_scores + query_at[None, :], d_tile)
  d_values = tl.dot(weights.to(gradient.dtype), gradient, d_values, input_precision=precision)
  return tl.dot(d_tile, scaled, d_block, input_precision=precision), d_values


@triton.jit
def attention_keys(
  query, key, value, bias, groups, facts, of_queries, of_keys, first,
  given, lse, inner,
  d_key,  # if packed: one array for all three
  d_value, d_scores, sums,
  length: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr,
  biased: tl.constexpr, window: tl.constexpr, limit: tl.constexpr, keeps: tl.constexpr,
  precision: tl.constexpr, packed: tl.constexpr, queries: tl.constexpr, stored: tl.constexpr,
):  # fmt: skip
  """Computes the gradients of a block of keys and of their values, a tile of queries at a time."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  apart: tl.constexpr = 3 * width if packed else width
  query, key, value = of_head(query, key, value, row, head, length, width, head_dim, packed)
  gradients = given + row.to(tl.int64) * length * width + head * head_dim
  groups, facts = groups + 2 * row * length, facts + ((2 * row + 1) * blocks + tile) * 3
  lse, inner = lse + at_head * length, inner + at_head * length
  padded: tl.constexpr = blocks * BLOCK
  key_at = tile * BLOCK + tl.arange(0, BLOCK)
  block = block_of(key, key_at, length, apart, head_dim, lanes)
  values = block_of(value, key_at, length, apart, head_dim, lanes)
  of_queries, is_odd = words_of_head(of_queries, first, row, head, length, heads)
  of_key = word(of_keys, key_at, key_at < length, length, limit)[:, None]
  of_group = taken(groups + length, key_at, key_at < length, length)[:, None]
  d_scores += (at_head.to(tl.int64) * padded + key_at[:, None]) * padded
  bias = tiles_of_bias(bias, head, tile, length, queries)
  state = tl.zeros([BLOCK, lanes], tl.float32), tl.zeros([BLOCK, lanes], tl.float32)
  first_query, whole, end = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
  for start in range(first_query, whole, queries):
    state = _key_tile(
      state, start, block, values, key_at, of_key, of_group, is_odd, query, gradients, lse, inner,
      bias, groups, of_queries, d_scores, length, width, apart, head_dim, lanes, biased, window, limit, keeps,
      precision, queries, stored, False,
    )  # fmt: skip
  for start in range(whole, end, queries):
    state = _key_tile(
      state, start, block, values, key_at, of_key, of_group, is_odd, query, gradients, lse, inner,
      bias, groups, of_queries, d_scores, length, width, apart, head_dim, lanes, biased, window, limit, keeps,
      precision, queries, stored, True,
    )  # fmt: skip
  if stored:
    for start in range(end, padded, queries):  # keys outside the row; `attention_bias` reads their gradients
      nothing = tl.zeros([BLOCK, queries], d_scores.dtype.element_ty)
      tl.store(d_scores + start + tl.arange(0, queries)[None, :], nothing)
  d_block, d_values = state
  _, d_key, d_value = of_head(d_key, d_key, d_value, row, head, length, width, head_dim, packed)
  put(d_key, d_block, key_at, length, apart, head_dim, lanes)
  d_values = d_values * (1 / keeps)
  put(d_value, d_values, key_at, length, apart, head_dim, lanes)
  sums += ((row * blocks + tile) * 3 + 1) * width + head * head_dim
  _put_sum(sums, d_block, head_dim, lanes)
  _put_sum(sums + width, d_values, head_dim, lanes)


@triton.jit
def attention_queries(
  key,  # if packed: one array for all three
  facts,
  d_scores,
  with_keys,  # if packed: written by `attention_keys`; the same memory as `d_query`
  with_sums,  # written by `attention_keys`; the same memory as `sums`
  d_query,
  sums,
  length: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr,
  lanes: tl.constexpr,
  precision: tl.constexpr,
  packed: tl.constexpr,
  keys: tl.constexpr,  # of a tile
):  # fmt: skip
  """Computes the gradient of a block of queries."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  apart: tl.constexpr = 3 * width if packed else width
  padded: tl.constexpr = blocks * BLOCK
  _, key, _ = of_head(key, key, key, row, head, length, width, head_dim, packed)
  query_at = tile * BLOCK + tl.arange(0, BLOCK)
  d_scores += at_head.to(tl.int64) * padded * padded + query_at[None, :]
  summed = tl.zeros([BLOCK, lanes], tl.float32)
  facts += (2 * row * blocks + tile) * 3
  for start in range(tl.load(facts) // keys * keys, tl.load(facts + 2), keys):
    key_at = start + tl.arange(0, keys)
    block = block_of(key, key_at, length, apart, head_dim, lanes)
    d_tile = tl.load(d_scores + key_at[:, None] * padded)
    summed = tl.dot(tl.trans(d_tile), block, summed, input_precision=precision)
  d_query, _, _ = of_head(d_query, d_query, d_query, row, head, length, width, head_dim, packed)
  summed = summed * (head_dim**-0.5)
  put(d_query, summed, query_at, length, apart, head_dim, lanes)
  _put_sum(sums + (row * blocks + tile) * 3 * width + head * head_dim, summed, head_dim, lanes)


@triton.jit
def attention_queries_again(
  query, key, value, groups, facts, of_queries, of_keys, first,
  given, lse, inner,
  with_keys,  # if packed: written by `attention_keys`; the same memory as `d_query`
  with_sums,  # written by `attention_keys`; the same memory as `sums`
  d_query, sums,
  length: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr,
  window: tl.constexpr, limit: tl.constexpr, keeps: tl.constexpr,
  precision: tl.constexpr, packed: tl.constexpr, keys: tl.constexpr,
):  # fmt: skip
  """Computes the gradient of a block of queries, and for it the gradients of scores once more."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  apart: tl.constexpr = 3 * width if packed else width
  query, key, value = of_head(query, key, value, row, head, length, width, head_dim, packed)
  gradients = given + row.to(tl.int64) * length * width + head * head_dim
  groups, facts = groups + 2 * row * length, facts + (2 * row * blocks + tile) * 3
  query_at = tile * BLOCK + tl.arange(0, BLOCK)
  real = query_at < length
  scaled = scaled_query(block_of(query, query_at, length, apart, head_dim, lanes), head_dim)
  gradient = block_of(gradients, query_at, length, width, head_dim, lanes)
  sum_of_query = taken(lse + at_head * length, query_at, real, length)[:, None]
  delta = taken(inner + at_head * length, query_at, real, length)[:, None]
  of_queries, is_odd = words_of_head(of_queries, first, row, head, length, heads)
  of_query = word(of_queries, query_at, real, length, limit)[:, None]
  of_group = taken(groups, query_at, real, length)[:, None]
  summed = tl.zeros([BLOCK, lanes], tl.float32)
  for start in range(tl.load(facts), tl.load(facts + 2), keys):
    key_at = start + tl.arange(0, keys)
    block = block_of(key, key_at, length, apart, head_dim, lanes)
    values = block_of(value, key_at, length, apart, head_dim, lanes)
    scores = tl.dot(scaled, tl.trans(block), input_precision=precision) * LOG2_E
    scores = masked_scores(scores, groups, query_at[:, None], key_at[None, :], of_group, length, window, True)
    d_weights = tl.dot(gradient, tl.trans(values), input_precision=precision)
    of_key = word(of_keys, key_at, key_at < length, length, limit)[None, :]
    d_weights = dropped(d_weights * (1 / keeps), of_query, of_key, is_odd, limit)
    d_tile = tl.exp2(scores - sum_of_query) * (d_weights - delta)
    d_tile = tl.where(sum_of_query > NO_KEY, d_tile, 0.0)
    summed = tl.dot(d_tile.to(block.dtype), block, summed, input_precision=precision)
  d_query, _, _ = of_head(d_query, d_query, d_query, row, head, length, width, head_dim, packed)
  summed = summed * (head_dim**-0.5)
  put(d_query, summed, query_at, length, apart, head_dim, lanes)
  _put_sum(sums + (row * blocks + tile) * 3 * width + head * head_dim, summed, head_dim, lanes)


@triton.jit
def attention_bias(
  d_scores,
  sums,  # [parts of the rows, heads, 2 blocks - 1, 2 BLOCK] float32
  rows: tl.constexpr,
  length: tl.constexpr,
  heads: tl.constexpr,
  at_once: tl.constexpr,  # rows of a part
):
  """Sums the gradient of the bias over some rows and along diagonals, for tiles at one distance."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  diagonals: tl.constexpr = 2 * blocks - 1
  apart, at_head = tl.program_id(0) % diagonals - (blocks - 1), tl.program_id(0) // diagonals
  head, first = at_head % heads, at_head // heads * at_once
  padded: tl.constexpr = blocks * BLOCK
  at = tl.arange(0, BLOCK)
  tile = at[:, None] * padded + at[None, :]
  summed = tl.zeros([BLOCK, BLOCK], tl.float32)
  for row in range(first, tl.minimum(first + at_once, rows)):
    of_row = d_scores + (tl.full([], row, tl.int64) * heads + head) * padded * padded
    for key in range(tl.maximum(apart, 0), tl.minimum(apart, 0) + blocks):
      summed += tl.load(of_row + key * BLOCK * padded + (key - apart) * BLOCK + tile).to(tl.float32)
  _put_diagonals(summed, sums + tl.program_id(0) * 2 * BLOCK)
