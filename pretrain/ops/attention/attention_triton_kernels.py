"""The Triton kernel of attention for NVIDIA GPUs, without scores in the GPU's memory.

A program holds a block of queries of one row and one head and iterates over the row's keys tile by tile, with
a running softmax (Dao et al. 2022, FlashAttention). `attention_triton_backward_kernels` has the gradients.

Exponentials are powers of 2, which GPUs compute directly: scores are multiplied by log2(e), and the bias
already is. Tiles that every query reads are computed without a mask, all others with one.

`attention_forward` and `attention_keys` read, in this order, arrays in JAX's layout:
  query, key, value: [rows, length, heads * head_dim]; if packed, one array with all three side by side,
    [rows, length, 3 * heads * head_dim].
  bias: [heads, tiles, BLOCK, tile] float32, the bias times log2(e) for a block and a tile, by their distance
    in tiles: from (first tile, last block) to (last tile, first block).
  groups: [rows, 2, length] int32, numbers of queries and of keys: a key is read if the two are equal.
  facts: [rows, 2, blocks, 3] int32: of each block of queries the keys that it reads, as the first, the first
    of tiles with a mask, and the end; and of each block of keys the same for the queries that read it.
  of_queries: [rows, pairs of heads, length] int32, and of_keys: [length] int32, the dropout's words.
  first: [1] int32, the number of the first head.
"""

import triton
import triton.language as tl

from pretrain.ops.triton_kernels import KEEPS_ALL, pair_kept

MASKED = tl.constexpr(-3.4028234663852886e38)  # the least float32, as in plain attention
NO_KEY = tl.constexpr(-1.7e38)  # a query's log-sum is below it if all of its keys are masked
LOG2_E = tl.constexpr(1.4426950408889634)
BLOCK = tl.constexpr(64)  # queries or keys of a block


@triton.jit
def word(array, at, real, length: tl.constexpr, limit: tl.constexpr):
  """Reads the dropout's words of tokens `at`; without dropout nothing is read."""
  if limit == KEEPS_ALL:
    return at
  return taken(array, at, real, length)


@triton.jit
def dropped(tile, of_query, of_key, is_odd, limit: tl.constexpr):
  """Sets a tile to 0 where `row_random.pair_kept` drops; the caller divides by the kept share."""
  if limit == KEEPS_ALL:
    return tile
  return tl.where(pair_kept(of_query, of_key, is_odd, limit), tile, 0.0)


@triton.jit
def masked_scores(
  scores, groups, query_at, key_at, of_query, length: tl.constexpr, window: tl.constexpr, masked: tl.constexpr
):
  """Sets scores to `MASKED` where a key may not be read, and to -inf beyond the row."""
  if not masked:
    return scores
  allowed = taken(groups + length, key_at, key_at < length, length) == of_query
  if window >= 0:
    allowed = allowed & (tl.abs(key_at - query_at) <= window)
  scores = tl.where(allowed, scores, MASKED)
  return scores if length % 128 == 0 else tl.where(key_at < length, scores, float("-inf"))


@triton.jit
def taken_bias(bias, biased: tl.constexpr):
  """Reads the bias of a tile at the pointer `bias`; without a bias nothing is read."""
  return tl.load(bias) if biased else 0.0


@triton.jit
def tiles_of_bias(bias, head, block, length: tl.constexpr, size: tl.constexpr):
  """Returns pointers to the bias of a block and the row's first tile, [BLOCK, size]; next tiles follow."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  first = head * (2 * blocks - 1) + blocks - 1 - block
  return bias + first * BLOCK * BLOCK + tl.arange(0, BLOCK)[:, None] * size + tl.arange(0, size)[None, :]


@triton.jit
def taken(array, at, real, length: tl.constexpr):
  """Reads elements of an array, 0 beyond the end of a row; rows of a multiple of 128 need no mask."""
  if length % 128 == 0:
    return tl.load(array + at)
  return tl.load(array + at, mask=real, other=0)


@triton.jit
def block_of(
  array, at, length: tl.constexpr, width: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr
):
  """Reads tokens `at` of a row's head, [tokens, lanes], with 0 beyond the row and the head."""
  lane = tl.arange(0, lanes)
  places = array + at[:, None] * width + lane[None, :]
  if length % 128 == 0 and lanes == head_dim:
    return tl.load(places)
  return tl.load(places, mask=(at < length)[:, None] & (lane < head_dim)[None, :], other=0.0)


@triton.jit
def put(
  array, block, at, length: tl.constexpr, width: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr
):
  """Writes tokens in the layout that `block_of` reads."""
  lane = tl.arange(0, lanes)
  real = (at < length)[:, None] & (lane < head_dim)[None, :]
  tl.store(array + at[:, None] * width + lane[None, :], block.to(array.dtype.element_ty), mask=real)


@triton.jit
def scaled_query(query, head_dim: tl.constexpr):
  return (query * (head_dim**-0.5)).to(query.dtype)


@triton.jit
def of_head(
  query, key, value, row, head, length: tl.constexpr, width: tl.constexpr, head_dim: tl.constexpr,
  packed: tl.constexpr,
):  # fmt: skip
  """Returns pointers to a row's head in query, key and value; if packed, `query` has all three."""
  if packed:
    at = row.to(tl.int64) * length * 3 * width + head * head_dim
    return query + at, query + width + at, query + 2 * width + at
  at = row.to(tl.int64) * length * width + head * head_dim
  return query + at, key + at, value + at


@triton.jit
def words_of_head(of_queries, first, row, head, length: tl.constexpr, heads: tl.constexpr):
  """Returns a pointer to a head's words of queries, and a mask: all bits for the second head of a pair."""
  first = tl.load(first)
  pair = ((first + head) >> 1) - (first >> 1)
  is_odd = (0 - ((first + head) & 1)).to(tl.uint32, bitcast=True)
  return of_queries + (row * (heads // 2 + 1) + pair) * length, is_odd


@triton.jit
def _forward_tile(
  state, start, scaled, query_at, of_query, of_group, is_odd, key, value, bias, groups, of_keys,
  length: tl.constexpr, width: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr,
  biased: tl.constexpr, window: tl.constexpr, limit: tl.constexpr, precision: tl.constexpr,
  keys: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
  """Updates maxima, sums and attended values of a block of queries with one tile of keys."""
  highest, total, attended = state
  key_at = start + tl.arange(0, keys)
  block = block_of(key, key_at, length, width, head_dim, lanes)
  scores = tl.dot(scaled, tl.trans(block), input_precision=precision)
  scores = scores * LOG2_E + taken_bias(bias + start // keys * (BLOCK * keys), biased)
  scores = masked_scores(scores, groups, query_at[:, None], key_at[None, :], of_group, length, window, masked)
  above = tl.maximum(highest, tl.max(scores, 1))
  weights = tl.exp2(scores - above[:, None])
  shrunk = tl.exp2(highest - above)
  total = total * shrunk + tl.sum(weights, 1)
  of_key = word(of_keys, key_at, key_at < length, length, limit)[None, :]
  weights = dropped(weights, of_query, of_key, is_odd, limit)
  block = block_of(value, key_at, length, width, head_dim, lanes)
  attended = tl.dot(weights.to(block.dtype), block, attended * shrunk[:, None], input_precision=precision)
  return above, total, attended


@triton.jit
def attention_forward(
  query, key, value, bias, groups, facts, of_queries, of_keys, first,
  out,
  lse,  # [rows, heads, length] float32, to the base 2
  length: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr,
  lanes: tl.constexpr,  # head_dim, or the next power of two
  biased: tl.constexpr,
  window: tl.constexpr,  # -1: none
  limit: tl.constexpr,  # `row_random.pair_limit`
  keeps: tl.constexpr,  # 1 - the rate of dropout
  precision: tl.constexpr,
  packed: tl.constexpr,
  keys: tl.constexpr,  # of a tile
):  # fmt: skip
  """Computes attention of a block of queries, and the logarithm of each query's sum of exponentials."""
  blocks: tl.constexpr = (length + BLOCK - 1) // BLOCK
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  apart: tl.constexpr = 3 * width if packed else width
  query, key, value = of_head(query, key, value, row, head, length, width, head_dim, packed)
  base = row.to(tl.int64) * length * width + head * head_dim
  groups, facts = groups + 2 * row * length, facts + (2 * row * blocks + tile) * 3
  query_at = tile * BLOCK + tl.arange(0, BLOCK)
  real = query_at < length
  scaled = scaled_query(block_of(query, query_at, length, apart, head_dim, lanes), head_dim)
  of_queries, is_odd = words_of_head(of_queries, first, row, head, length, heads)
  of_query = word(of_queries, query_at, real, length, limit)[:, None]
  of_group = taken(groups, query_at, real, length)[:, None]
  bias = tiles_of_bias(bias, head, tile, length, keys)
  highest = tl.full([BLOCK], float("-inf"), tl.float32)
  state = highest, tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK, lanes], tl.float32)
  first_key, whole, end = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
  for start in range(first_key, whole, keys):
    state = _forward_tile(
      state, start, scaled, query_at, of_query, of_group, is_odd, key, value, bias, groups,
      of_keys, length, apart, head_dim, lanes, biased, window, limit, precision, keys, False,
    )  # fmt: skip
  for start in range(whole, end, keys):
    state = _forward_tile(
      state, start, scaled, query_at, of_query, of_group, is_odd, key, value, bias, groups,
      of_keys, length, apart, head_dim, lanes, biased, window, limit, precision, keys, True,
    )  # fmt: skip
  highest, total, attended = state
  put(out + base, attended / (total * keeps)[:, None], query_at, length, width, head_dim, lanes)
  tl.store(lse + at_head * length + query_at, highest + tl.log2(total), mask=real)
