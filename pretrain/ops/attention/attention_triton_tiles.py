"""Functions of the Triton attention kernels on one tile: reads, writes, masks, dropout."""

import triton
import triton.language as tl

from pretrain.ops.draws.row_random_triton import KEEPS_ALL, pair_kept

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
