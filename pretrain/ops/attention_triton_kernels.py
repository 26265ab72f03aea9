"""Triton kernels for NVIDIA GPUs: attention forward and backward, without scores in the GPU's memory.

A program holds a block of one row and one head and goes through the row's other tokens block by block:
`forward` and `backward_query` hold queries, `backward_key` holds keys. Softmax goes along with the blocks
(Dao et al. 2022, FlashAttention); the backward pass computes probabilities again from the logarithm of each
query's sum and draws the same dropout again. The relative bias is read by distance, a vector for each head.
Its gradient, sums along diagonals, leaves `backward_key` as one vector for each pair of blocks, so that no
order of programs changes it.

All three read, in this order, as JAX lays arrays out:
  query, key, value: [rows, length, heads * head_dim].
  distances: [heads, 2 length - 1] float32, the bias by key - query + length - 1.
  groups: [rows, 2, length] int32, numbers of queries and of keys: a key is read where the two agree.
  facts: [rows, 4] int32: both words of the dropout's key, the number of the first head, and from which key on
    none has a part in the row.
"""

import triton
import triton.language as tl

_MASKED = tl.constexpr(-3.4028234663852886e38)  # the least float32, as in plain attention
_KEEPS_ALL = tl.constexpr(-(2**31))  # `row_random.pair_limit` of the rate 0
_NO_KEY = tl.constexpr(-1.7e38)  # the logarithm of a query's sum is below it where all keys are masked


@triton.jit
def _mix_but_last(bits):
  bits = (bits ^ (bits >> 16)) * 0x7FEB352D
  return (bits ^ (bits >> 15)) * 0x846CA68B


@triton.jit
def _mix(bits):
  bits = _mix_but_last(bits)
  return bits ^ (bits >> 16)


@triton.jit
def _kept(facts, head, query_at, key_at, length: tl.constexpr, limit: tl.constexpr):
  """What dropout leaves of a tile: the draw of `row_random.row_kept_of_heads`."""
  if limit == _KEEPS_ALL:
    return (query_at >= 0) & (key_at >= 0)
  first = tl.load(facts).to(tl.uint32, bitcast=True)
  second = tl.load(facts + 1).to(tl.uint32, bitcast=True)
  of_head = tl.load(facts + 2) + head
  of_query = _mix(((of_head >> 1) * length + query_at).to(tl.uint32) ^ first)
  bits = _mix_but_last(_mix(of_query + second) ^ _mix((key_at + 1).to(tl.uint32) * 0x9E3779B9))
  bits = bits ^ ((bits << 16) & (0 - (of_head & 1)).to(tl.uint32, bitcast=True))
  return bits.to(tl.int32, bitcast=True) >= limit


@triton.jit
def _scores(
  product,
  distances,
  groups,
  query_at,
  key_at,
  length: tl.constexpr,
  biased: tl.constexpr,
  window: tl.constexpr,
):
  """Adds the bias to a tile of products, puts `_MASKED` where a key may not be read, -inf behind the row."""
  if biased:
    product += _taken(
      distances, key_at - query_at + length - 1, (query_at < length) & (key_at < length), length
    )
  of_query = _taken(groups, query_at, query_at < length, length)
  allowed = _taken(groups + length, key_at, key_at < length, length) == of_query
  if window >= 0:
    allowed = allowed & (tl.abs(key_at - query_at) <= window)
  scores = tl.where(allowed, product, _MASKED)
  return scores if length % 128 == 0 else tl.where(key_at < length, scores, float("-inf"))


@triton.jit
def _taken(array, at, real, length: tl.constexpr):
  """Elements of an array, 0 behind the end of a row; a row of a multiple of 128 ends with a block."""
  if length % 128 == 0:
    return tl.load(array + at)
  return tl.load(array + at, mask=real, other=0)


@triton.jit
def _block(array, at, length: tl.constexpr, width: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr):
  """Tokens `at` of a row's head, [tokens, lanes], 0 behind the row and the head."""
  lane = tl.arange(0, lanes)
  places = array + at[:, None] * width + lane[None, :]
  if length % 128 == 0 and lanes == head_dim:
    return tl.load(places)
  return tl.load(places, mask=(at < length)[:, None] & (lane < head_dim)[None, :], other=0.0)


@triton.jit
def _put(
  array, block, at, length: tl.constexpr, width: tl.constexpr, head_dim: tl.constexpr, lanes: tl.constexpr
):
  """Writes what `_block` reads."""
  lane = tl.arange(0, lanes)
  real = (at < length)[:, None] & (lane < head_dim)[None, :]
  tl.store(array + at[:, None] * width + lane[None, :], block.to(array.dtype.element_ty), mask=real)


@triton.jit
def _scaled(query, head_dim: tl.constexpr):
  return (query * (head_dim**-0.5)).to(query.dtype)


@triton.jit
def forward(
  query,
  key,
  value,
  distances,
  groups,
  facts,
  out,
  lse,  # [rows, heads, length] float32
  length: tl.constexpr,
  heads: tl.constexpr,
  head_dim: tl.constexpr,
  lanes: tl.constexpr,  # head_dim, or the next power of two
  biased: tl.constexpr,
  window: tl.constexpr,  # -1: none
  limit: tl.constexpr,  # `row_random.pair_limit`
  keeps: tl.constexpr,  # 1 - the rate of dropout
  precision: tl.constexpr,
  queries: tl.constexpr,  # of a block
  keys: tl.constexpr,
):
  """Attention of a block of queries, and the logarithm of each query's sum of exponentials."""
  blocks: tl.constexpr = (length + queries - 1) // queries
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  base = row.to(tl.int64) * length * width + head * head_dim
  distances, groups, facts = distances + head * (2 * length - 1), groups + 2 * row * length, facts + 4 * row
  query_at = tile * queries + tl.arange(0, queries)
  scaled = _scaled(_block(query + base, query_at, length, width, head_dim, lanes), head_dim)
  highest = tl.full([queries], float("-inf"), tl.float32)
  total = tl.zeros([queries], tl.float32)
  attended = tl.zeros([queries, lanes], tl.float32)
  for start in range(0, tl.load(facts + 3), keys):
    key_at = start + tl.arange(0, keys)
    block = _block(key + base, key_at, length, width, head_dim, lanes)
    scores = tl.dot(scaled, tl.trans(block), input_precision=precision)
    scores = _scores(scores, distances, groups, query_at[:, None], key_at[None, :], length, biased, window)
    above = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp(scores - above[:, None])
    shrunk = tl.exp(highest - above)
    total = total * shrunk + tl.sum(weights, 1)
    weights = tl.where(_kept(facts, head, query_at[:, None], key_at[None, :], length, limit), weights, 0.0)
    block = _block(value + base, key_at, length, width, head_dim, lanes)
    attended = attended * shrunk[:, None]
    attended = tl.dot(weights.to(block.dtype), block, attended, input_precision=precision)
    highest = above
  _put(out + base, attended / (total * keeps)[:, None], query_at, length, width, head_dim, lanes)
  tl.store(lse + at_head * length + query_at, highest + tl.log(total), mask=query_at < length)


@triton.jit
def backward_query(
  query,
  key,
  value,
  distances,
  groups,
  facts,
  given,  # the gradient of `out`
  lse,
  inner,  # [rows, heads, length] float32: sums of `given` times `out` over the head
  d_query,
  length: tl.constexpr,
  heads: tl.constexpr,
  head_dim: tl.constexpr,
  lanes: tl.constexpr,
  biased: tl.constexpr,
  window: tl.constexpr,
  limit: tl.constexpr,
  keeps: tl.constexpr,
  precision: tl.constexpr,
  queries: tl.constexpr,
  keys: tl.constexpr,
):
  """The gradient of a block of queries."""
  blocks: tl.constexpr = (length + queries - 1) // queries
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  base = row.to(tl.int64) * length * width + head * head_dim
  distances, groups, facts = distances + head * (2 * length - 1), groups + 2 * row * length, facts + 4 * row
  query_at = tile * queries + tl.arange(0, queries)
  scaled = _scaled(_block(query + base, query_at, length, width, head_dim, lanes), head_dim)
  gradient = _block(given + base, query_at, length, width, head_dim, lanes)
  at = at_head * length + query_at
  sums = _taken(lse, at, query_at < length, length)[:, None]
  delta = _taken(inner, at, query_at < length, length)[:, None]
  summed = tl.zeros([queries, lanes], tl.float32)
  for start in range(0, tl.load(facts + 3), keys):
    key_at = start + tl.arange(0, keys)
    block = _block(key + base, key_at, length, width, head_dim, lanes)
    scores = tl.dot(scaled, tl.trans(block), input_precision=precision)
    scores = _scores(scores, distances, groups, query_at[:, None], key_at[None, :], length, biased, window)
    values = _block(value + base, key_at, length, width, head_dim, lanes)
    d_weights = tl.dot(gradient, tl.trans(values), input_precision=precision) * (1 / keeps)
    kept = _kept(facts, head, query_at[:, None], key_at[None, :], length, limit)
    d_weights = tl.where(kept, d_weights, 0.0)
    # The average of a query without keys has no gradient to its scores.
    d_scores = tl.where(sums > _NO_KEY, tl.exp(scores - sums) * (d_weights - delta), 0.0)
    summed = tl.dot(d_scores.to(block.dtype), block, summed, input_precision=precision)
  _put(d_query + base, summed * (head_dim**-0.5), query_at, length, width, head_dim, lanes)


@triton.jit
def _put_diagonals(tile, array, keys: tl.constexpr, queries: tl.constexpr):
  """Sums along the diagonals of a tile [keys, queries]: element key - query + queries - 1 of `array`.

  Row k, turned by k, has a diagonal in every column: one of this side of the tile and one of the other.
  """
  behind = tl.arange(0, keys)[:, None] - tl.arange(0, queries)[None, :] - 1
  columns = tl.gather(tile, (behind + 2 * queries) % queries, 1)
  array += tl.arange(0, queries)
  tl.store(array, tl.sum(tl.where(behind < 0, columns, 0.0), 0))
  tl.store(array + queries, tl.sum(tl.where(behind < 0, 0.0, columns), 0))


@triton.jit
def backward_key(
  query,
  key,
  value,
  distances,
  groups,
  facts,
  given,
  lse,
  inner,
  d_key,
  d_value,
  diagonals,  # [rows, heads, blocks of keys, blocks of queries, 2 queries] float32, 0 at first
  length: tl.constexpr,
  heads: tl.constexpr,
  head_dim: tl.constexpr,
  lanes: tl.constexpr,
  biased: tl.constexpr,
  window: tl.constexpr,
  limit: tl.constexpr,
  keeps: tl.constexpr,
  precision: tl.constexpr,
  queries: tl.constexpr,
  keys: tl.constexpr,
):
  """The gradients of a block of keys, of their values, and of the bias, in tiles as wide as high."""
  blocks: tl.constexpr = (length + keys - 1) // keys
  tile, at_head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
  row, head = at_head // heads, at_head % heads
  width: tl.constexpr = heads * head_dim
  base = row.to(tl.int64) * length * width + head * head_dim
  distances, groups, facts = distances + head * (2 * length - 1), groups + 2 * row * length, facts + 4 * row
  diagonals += tl.program_id(0).to(tl.int64) * blocks * 2 * queries
  key_at = tile * keys + tl.arange(0, keys)
  block = _block(key + base, key_at, length, width, head_dim, lanes)
  values = _block(value + base, key_at, length, width, head_dim, lanes)
  d_block, d_values = tl.zeros([keys, lanes], tl.float32), tl.zeros([keys, lanes], tl.float32)
  for other in range(tl.where(tile * keys < tl.load(facts + 3), blocks, 0)):
    query_at = other * queries + tl.arange(0, queries)
    scaled = _scaled(_block(query + base, query_at, length, width, head_dim, lanes), head_dim)
    gradient = _block(given + base, query_at, length, width, head_dim, lanes)
    at = at_head * length + query_at
    sums = _taken(lse, at, query_at < length, length)[None, :]
    delta = _taken(inner, at, query_at < length, length)[None, :]
    scores = tl.dot(block, tl.trans(scaled), input_precision=precision)
    scores = _scores(scores, distances, groups, query_at[None, :], key_at[:, None], length, biased, window)
    weights = tl.exp(scores - sums)
    # A query without keys averages: from its sum every weight comes out as 1.
    dropped = tl.where(sums > _NO_KEY, weights, weights * (1 / length))
    kept = _kept(facts, head, query_at[None, :], key_at[:, None], length, limit)
    dropped = tl.where(kept, dropped, 0.0)
    d_values = tl.dot(dropped.to(gradient.dtype), gradient, d_values, input_precision=precision)
    d_weights = tl.dot(values, tl.trans(gradient), input_precision=precision) * (1 / keeps)
    d_weights = tl.where(kept, d_weights, 0.0)
    d_scores = tl.where(sums > _NO_KEY, weights * (d_weights - delta), 0.0)
    d_block = tl.dot(d_scores.to(scaled.dtype), scaled, d_block, input_precision=precision)
    if biased:
      _put_diagonals(d_scores, diagonals + other * 2 * queries, keys, queries)
  _put(d_key + base, d_block, key_at, length, width, head_dim, lanes)
  _put(d_value + base, d_values * (1 / keeps), key_at, length, width, head_dim, lanes)
