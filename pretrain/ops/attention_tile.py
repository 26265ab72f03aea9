"""Pallas kernels for TPUs: attention of short rows, forward and backward, without scores in HBM.

One grid step holds the queries, keys and values of one row and one group of heads in VMEM and goes through
tiles of 128 queries. A tile meets all keys at once, so its softmax is an ordinary one. Scores lie transposed,
[keys, queries]: a sum over keys adds registers, and what belongs to a query is a row. The heads of a group
share the 128 lanes of a register: products run over all lanes, with those of other heads set to 0.

The relative bias comes as a vector over distances. The first row of a group of heads spreads it over [keys,
queries] in VMEM, where later rows find it; its gradient is summed there over all rows and folded at the last.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.ops import row_random

TILE = 128  # queries of a tile, and what lengths are padded to: the lanes of a register
SUBLANES = 8  # copies of the bias vector, each moved on by one: the smallest piece that registers hold
MASKED = float(np.finfo(np.float32).min)
_ROWS_BY_ROWS = (((1,), (1,)), ((), ()))  # a @ b.T
_COLUMNS_BY_COLUMNS = (((0,), (0,)), ((), ()))  # a.T @ b
_PRODUCT = (((1,), (0,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What a kernel is compiled for."""

  rows: int
  length: int  # tokens of a row
  heads: int  # on this device
  head_dim: int
  dropout_rate: float
  window: int | None

  @property
  def padded(self) -> int:
    """Tokens of a row in memory: a multiple of the tile."""
    return -(-self.length // TILE) * TILE

  @property
  def group(self) -> int:
    """Heads of a grid step: those that fill 128 lanes, or all where they do not."""
    fill = max(1, TILE // self.head_dim)
    fits = self.head_dim * fill % TILE == 0 and self.heads % fill == 0
    return fill if fits else self.heads

  @property
  def groups(self) -> int:
    """Grid steps over the heads."""
    return self.heads // self.group

  @property
  def lanes(self) -> int:
    """Width of a group of heads."""
    return self.group * self.head_dim


def _dot(a: jax.Array, b: jax.Array, dimensions: tuple) -> jax.Array:
  return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _of_head(sizes: Sizes, x: jax.Array, head: int, axis: int) -> jax.Array:
  """x with what is not of a head of the group, along an axis of `lanes`, set to 0."""
  if sizes.group == 1:
    return x
  at = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
  own = (at >= head * sizes.head_dim) & (at < (head + 1) * sizes.head_dim)
  return jnp.where(own, x, jnp.zeros_like(x))


def _real(sizes: Sizes, tokens: jax.Array, first=0) -> jax.Array:
  """Tokens of a row from `first` on, [tokens, lanes]; 0 behind its end, where memory holds anything."""
  if sizes.padded == sizes.length:
    return tokens
  at = first + jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
  return jnp.where(at < sizes.length, tokens, jnp.zeros_like(tokens))


def _scores(
  sizes: Sizes, refs: dict, spread, masks: tuple, key: jax.Array, query: jax.Array, head: int, tile
) -> jax.Array:
  """[padded, TILE] float32 scores of (key, query), `MASKED` where a key may not be read."""
  scores = _dot(key, query, _ROWS_BY_ROWS)
  if spread is not None:
    scores = scores + spread[head, :, pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)]
  key_bias, key_segment = masks
  scores = scores + key_bias
  allowed = None
  if key_segment is not None:
    allowed = key_segment == refs["segments"][0, :, pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)]
  if sizes.window is not None:
    at = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    of = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1) + tile * TILE
    near = jnp.abs(at - of) <= sizes.window
    allowed = near if allowed is None else allowed & near
  if allowed is None:
    return scores
  # Padding of the row stays at minus infinity: it has no part in the average of a query without keys.
  return jnp.where(allowed | (key_bias == -jnp.inf), scores, MASKED)


def _columns(row: jax.Array) -> jax.Array:
  """[1, padded] to [padded, TILE], the same in every column."""
  return jnp.transpose(jnp.broadcast_to(row, (TILE, row.shape[1])))


def _masks(refs: dict) -> tuple:
  """What a tile of scores needs of the keys, [padded, TILE]: what is added, and their segments or None."""
  segments = refs["segments"]
  return _columns(refs["key_bias"][0]), None if segments is None else _columns(segments[0])


def _kept(sizes: Sizes, refs: dict, place: tuple, head: int, tile) -> jax.Array | None:
  """[padded, TILE] bool, what dropout leaves: the draw of `row_random.dropout` on [heads, query, key]."""
  if not sizes.dropout_rate:
    return None
  group, row = place
  key = jax.lax.broadcasted_iota(jnp.int32, (sizes.padded, TILE), 0)
  query = jax.lax.broadcasted_iota(jnp.int32, (sizes.padded, TILE), 1)
  of_head = refs["first_head"][0, 0] + group * sizes.group + head
  start = (of_head * sizes.length + tile * TILE) * sizes.length
  counter = (key + query * sizes.length + start).astype(jnp.uint32)
  words = [refs["words"][row, at].astype(jnp.uint32) for at in range(2)]
  return row_random.is_kept(counter, *words, rate=sizes.dropout_rate)


def _spread(sizes: Sizes, distances, spread) -> None:
  """Writes [group, padded, padded] from [1, group, 8, 2 padded]: row k is row 0 moved on by k."""
  for head in range(sizes.group):
    rows = distances[0, head]
    while rows.shape[0] < TILE:
      rows = jnp.concatenate([rows, pltpu.roll(rows, rows.shape[0], 1)], axis=0)
    for start in range(0, sizes.padded, TILE):
      moved = pltpu.roll(rows, start, 1) if start else rows
      spread[head, start : start + TILE, :] = moved[:, : sizes.padded]


def _fold(sizes: Sizes, summed: jax.Array) -> jax.Array:
  """The transpose of `_spread` for a head: [padded, padded] to [8, 2 padded]."""
  wide = 2 * sizes.padded
  rows = jnp.zeros((TILE, wide), jnp.float32)
  for start in range(0, sizes.padded, TILE):
    part = jnp.concatenate(
      [summed[start : start + TILE], jnp.zeros((TILE, sizes.padded), jnp.float32)], axis=1
    )
    rows = rows + (pltpu.roll(part, wide - start, 1) if start else part)
  while rows.shape[0] > SUBLANES:
    half = rows.shape[0] // 2
    rows = rows[:half] + pltpu.roll(rows[half:], wide - half, 1)
  return rows


def _over_tiles(sizes: Sizes, body) -> None:
  """Runs `body` for every tile, two at a time where they pair up: one computes while the other waits."""
  tiles = sizes.padded // TILE
  jax.lax.fori_loop(0, tiles, body, 0, unroll=2 if tiles % 2 == 0 else 1)


def _scaled(sizes: Sizes, query: jax.Array, tile) -> jax.Array:
  return _real(sizes, query, tile * TILE) * jnp.asarray(sizes.head_dim**-0.5, query.dtype)


def forward(sizes: Sizes, refs: dict, out: dict, scratch: dict) -> None:
  """The kernel of the forward pass: `out`, and `lse`, the logarithm of every query's sum of exponentials."""
  program_ids = pl.program_id(0), pl.program_id(1)  # group of heads, row
  spread = scratch["spread"]
  if spread is not None:
    pl.when(program_ids[1] == 0)(lambda: _spread(sizes, refs["distances"], spread))
  key, value = (_real(sizes, refs[name][0]) for name in ("key", "value"))
  masks = _masks(refs)

  def tile_of(tile, _):
    at = pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)
    query = _scaled(sizes, refs["query"][0, at, :], tile)
    attended = jnp.zeros((sizes.lanes, TILE), jnp.float32)
    for head in range(sizes.group):
      scores = _scores(sizes, refs, spread, masks, key, _of_head(sizes, query, head, 1), head, tile)
      highest = jnp.max(scores, axis=0, keepdims=True)
      weights = jnp.exp(scores - highest)
      total = jnp.sum(weights, axis=0, keepdims=True)
      out["lse"][0, 0, head : head + 1, at] = highest + jnp.log(total)
      kept = _kept(sizes, refs, program_ids, head, tile)
      if kept is not None:
        weights = jnp.where(kept, weights, 0.0)
      product = _dot(value, weights.astype(value.dtype), _COLUMNS_BY_COLUMNS)
      product = product * (1.0 / (total * (1.0 - sizes.dropout_rate)))
      attended = attended + _of_head(sizes, product, head, 0)
    out["out"][0, at, :] = jnp.transpose(attended).astype(value.dtype)
    return 0

  _over_tiles(sizes, tile_of)


def backward(sizes: Sizes, refs: dict, out: dict, scratch: dict) -> None:
  """The kernel of the backward pass: probabilities again, from `lse`; all gradients."""
  spread, summed = scratch["spread"], scratch["summed"]
  program_ids = pl.program_id(0), pl.program_id(1)  # group of heads, row
  pl.when(program_ids[1] == 0)(lambda: _begin(sizes, refs, out, scratch))
  key, value = (_real(sizes, refs[name][0]) for name in ("key", "value"))
  masks = _masks(refs)
  d_key, d_value = scratch["key"], scratch["value"]
  d_key[...] = d_value[...] = jnp.zeros_like(d_key)

  def tile_of(tile, _):
    at = pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)
    query = _scaled(sizes, refs["query"][0, at, :], tile)
    given, attended = (_real(sizes, refs[name][0, at, :], tile * TILE) for name in ("given", "out"))
    d_output = given.astype(jnp.float32) * (1.0 / (1.0 - sizes.dropout_rate))
    lse = refs["lse"][0, 0, :, at]
    # A query without keys has an lse of MASKED: probabilities come out as 1 instead of 1 / length, and there
    # is no gradient to its scores.
    live = jnp.transpose(_by_lane(sizes, (lse > 0.5 * MASKED).astype(jnp.float32)))
    averaged = (d_output * jnp.where(live > 0, 1.0, 1.0 / sizes.length)).astype(value.dtype)
    inner = jnp.transpose(d_output * live * (1.0 - sizes.dropout_rate) * attended.astype(jnp.float32))
    d_output = (d_output * live).astype(value.dtype)
    d_query = jnp.zeros((sizes.lanes, TILE), jnp.float32)
    for head in range(sizes.group):
      own = _of_head(sizes, query, head, 1)
      scores = _scores(sizes, refs, spread, masks, key, own, head, tile)
      weights = jnp.exp(scores - lse[head : head + 1])
      d_weights = _dot(value, _of_head(sizes, d_output, head, 1), _ROWS_BY_ROWS)
      kept = _kept(sizes, refs, program_ids, head, tile)
      dropped = weights
      if kept is not None:
        dropped = jnp.where(kept, weights, 0.0)
        d_weights = jnp.where(kept, d_weights, 0.0)
      d_value[...] += _dot(dropped.astype(value.dtype), _of_head(sizes, averaged, head, 1), _PRODUCT)
      rows = slice(head * sizes.head_dim, (head + 1) * sizes.head_dim)
      delta = jnp.sum(inner[rows], axis=0, keepdims=True)
      d_scores = weights * (d_weights - delta)
      if summed is not None:
        summed[head, :, at] += d_scores
      d_scores = d_scores.astype(key.dtype)
      d_key[...] += _dot(d_scores, own, _PRODUCT)
      d_query = d_query + _of_head(sizes, _dot(key, d_scores, _COLUMNS_BY_COLUMNS), head, 0)
    d_query = jnp.transpose(d_query) * sizes.head_dim**-0.5
    out["query"][0, at, :] = d_query.astype(key.dtype)
    out["biases"][0, :1] += jnp.sum(d_query, axis=0, keepdims=True)
    return 0

  _over_tiles(sizes, tile_of)
  out["key"][0] = d_key[...].astype(key.dtype)
  out["value"][0] = d_value[...].astype(value.dtype)
  for at, summand in ((1, d_key), (2, d_value)):
    out["biases"][0, at : at + 1] += jnp.sum(summand[...], axis=0, keepdims=True)
  if summed is not None:

    @pl.when(program_ids[1] == sizes.rows - 1)
    def _():
      for head in range(sizes.group):
        out["distances"][0, head] = _fold(sizes, summed[head])


def _begin(sizes: Sizes, refs: dict, out: dict, scratch: dict) -> None:
  """Before the first row of a group of heads: sums over rows are 0, the bias is spread."""
  out["biases"][...] = jnp.zeros_like(out["biases"])
  if scratch["spread"] is not None:
    _spread(sizes, refs["distances"], scratch["spread"])
    scratch["summed"][...] = jnp.zeros_like(scratch["summed"])


def _by_lane(sizes: Sizes, of_heads: jax.Array) -> jax.Array:
  """[group, TILE] of heads to [lanes, TILE]: a head's row for each of its lanes."""
  parts = [jnp.broadcast_to(of_heads[head : head + 1], (sizes.head_dim, TILE)) for head in range(sizes.group)]
  return jnp.concatenate(parts, axis=0)
