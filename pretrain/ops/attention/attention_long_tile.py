"""Pallas kernels for TPUs: attention of long rows without a bias, forward and backward, no scores in HBM.

One grid step has in VMEM the keys and values of a whole row and of one group of heads (`attention_heads`),
and a block of its queries. It reads those keys only that some query of the block may read: the ones near each
tile of 128 queries if the window is small, or else a range of chunks, which the caller has found from window
and segments, with a running softmax (Dao et al. 2022, FlashAttention). Scores are [keys, queries].

A key is read if its group is the query's: groups are segments, and masked keys have one of their own.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pretrain.ops.attention import attention_heads as heads
from pretrain.ops.attention.attention_long_sizes import LongSizes
from pretrain.ops.attention.attention_sizes import TILE
from pretrain.ops.attention.attention_tile import MASKED


def _tiles(sizes: LongSizes) -> list[slice]:
  return [slice(start, start + TILE) for start in range(0, sizes.block, TILE)]


def _begin(refs: dict, columns) -> None:
  """Writes the groups of a row's keys as [padded, TILE] with equal columns, before its first queries."""

  @pl.when((pl.program_id(1) == 0) & (refs["block"] == 0))
  def _():
    row = refs["of_keys"][...]
    columns[...] = jnp.transpose(jnp.broadcast_to(row, (TILE, row.shape[1])))


def _over_keys(sizes: LongSizes, refs: dict, step: Callable, states: list) -> list:
  """Updates the state of every tile of queries by `step(tile, start, size, state)` for the keys it reads.

  `start` is the first key. Tiles with chunks of keys share them, so that one computes while another waits.
  """
  block = refs["block"]
  if sizes.near:
    for number, tile in enumerate(_tiles(sizes)):
      first = block * sizes.block + tile.start - (sizes.near - TILE) // 2
      start = jnp.clip(first, 0, sizes.padded - sizes.near)
      states[number] = step(tile, pl.multiple_of(start, TILE // 2), sizes.near, states[number])
    return states

  def of_chunk(chunk, states: list) -> list:
    start = pl.multiple_of(chunk * sizes.chunk, sizes.chunk)
    return [step(tile, start, sizes.chunk, state) for tile, state in zip(_tiles(sizes), states, strict=True)]

  first, end = (refs["ranges"][pl.program_id(0), block, at] for at in range(2))
  return jax.lax.fori_loop(first, end, of_chunk, states)


def _allowed(sizes: LongSizes, refs: dict, columns, tile: slice, start, size: int) -> jax.Array:
  """Returns [size, group * TILE] bool, whether a query of the tile reads a key; the same for all heads."""
  allowed = columns[pl.ds(start, size), :] == refs["of_queries"][:, tile]
  if sizes.window is not None:
    apart = jax.lax.broadcasted_iota(jnp.int32, (size, TILE), 0) + start
    apart -= jax.lax.broadcasted_iota(jnp.int32, (size, TILE), 1) + (refs["block"] * sizes.block + tile.start)
    allowed &= jnp.abs(apart) <= sizes.window
  return jnp.concatenate([allowed] * sizes.group, axis=1)


def _scaled(sizes: LongSizes, query: jax.Array) -> jax.Array:
  return heads.by_head(sizes, query * jnp.asarray(sizes.head_dim**-0.5, query.dtype))


def forward(sizes: LongSizes, refs: dict, out: dict, scratch: dict) -> None:
  """Forward kernel: writes `out`, and `lse`, the logarithm of every query's sum of exponentials."""
  columns, refs = scratch["of_keys"], refs | {"block": pl.program_id(2)}
  _begin(refs, columns)
  queries = {tile.start: _scaled(sizes, refs["query"][tile, :]) for tile in _tiles(sizes)}

  def step(tile: slice, start, size: int, state: tuple) -> tuple:
    highest, total, attended = state
    scores = []
    for at in range(0, size, TILE):
      own = start + at
      allowed = _allowed(sizes, refs, columns, tile, own, TILE)
      part = heads.dot(refs["key"][pl.ds(own, TILE), :], queries[tile.start], heads.ROWS_BY_ROWS)
      scores.append(jnp.where(allowed, part, MASKED))
    above = jnp.maximum(highest, jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True))
    weights = [jnp.exp(part - above) for part in scores]
    shrunk = jnp.exp(highest - above)
    total = total * shrunk + jnp.sum(functools.reduce(jnp.add, weights), axis=0, keepdims=True)
    attended = attended * heads.by_lane(sizes, heads.one_below_another(sizes, shrunk))
    for number, part in enumerate(weights):
      turned = jnp.transpose(refs["value"][pl.ds(start + number * TILE, TILE), :])
      attended = attended + heads.product_by_head(sizes, turned, part.astype(turned.dtype))
    return above, total, attended

  line = (1, sizes.group * TILE)
  empty = jnp.full(line, MASKED, jnp.float32), jnp.zeros(line), jnp.zeros((sizes.lanes, TILE), jnp.float32)
  states = _over_keys(sizes, refs, step, [empty] * len(queries))
  for tile, (highest, total, attended) in zip(_tiles(sizes), states, strict=True):
    out["lse"][0, :, tile] = heads.one_below_another(sizes, highest + jnp.log(total))
    attended = attended * heads.by_lane(sizes, heads.one_below_another(sizes, 1.0 / total))
    out["out"][tile, :] = jnp.transpose(attended).astype(out["out"].dtype)


def backward(sizes: LongSizes, refs: dict, out: dict, scratch: dict) -> None:
  """Backward kernel: recomputes probabilities from `lse`; writes gradients of queries, keys and values."""
  columns, refs = scratch["of_keys"], refs | {"block": pl.program_id(2)}
  _begin(refs, columns)

  @pl.when(refs["block"] == 0)
  def _():
    scratch["key"][...] = scratch["value"][...] = jnp.zeros(scratch["key"].shape, jnp.float32)

  of_tile: dict[int, tuple] = {}
  for tile in _tiles(sizes):
    d_out = refs["given"][tile, :]
    inner = jnp.transpose(d_out.astype(jnp.float32) * refs["out"][tile, :].astype(jnp.float32))
    of_tile[tile.start] = (
      _scaled(sizes, refs["query"][tile, :]),
      heads.by_head(sizes, d_out),
      heads.side_by_side(heads.over_lanes(sizes, inner)),
      heads.side_by_side(refs["lse"][0, :, tile]),
    )

  def step(tile: slice, start, size: int, d_query: jax.Array) -> jax.Array:
    query, d_out, inner, lse = of_tile[tile.start]
    keys = pl.ds(start, size)
    key, value = refs["key"][keys, :], refs["value"][keys, :]
    allowed = _allowed(sizes, refs, columns, tile, start, size)
    weights = jnp.exp(heads.dot(key, query, heads.ROWS_BY_ROWS) - lse)
    weights = jnp.where(allowed, weights, 0.0)
    d_scores = weights * (heads.dot(value, d_out, heads.ROWS_BY_ROWS) - inner)
    d_scores = d_scores.astype(key.dtype)
    scratch["value"][keys, :] += heads.dot(weights.astype(value.dtype), d_out, heads.PRODUCT)
    scratch["key"][keys, :] += heads.dot(d_scores, query, heads.PRODUCT)
    return d_query + heads.product_by_head(sizes, jnp.transpose(key), d_scores)

  none: list[Any] = [jnp.zeros((sizes.lanes, TILE), jnp.float32)] * len(of_tile)
  for tile, d_query in zip(_tiles(sizes), _over_keys(sizes, refs, step, none), strict=True):
    d_query = jnp.transpose(d_query) * sizes.head_dim**-0.5
    out["query"][tile, :] = d_query.astype(out["query"].dtype)

  @pl.when(refs["block"] == sizes.padded // sizes.block - 1)
  def _():
    for name in ("key", "value"):
      out[name][...] = scratch[name][...].astype(out[name].dtype)
