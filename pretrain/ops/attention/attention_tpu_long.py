"""Attention of long rows without a bias on TPUs: Pallas kernels forward and backward, without scores in HBM.

One grid step has in VMEM the keys and values of a whole row and of one group of heads
(`attention_tpu_layout`), and a block of its queries. It reads those keys only that some query of the block
may read: the ones near each tile of 128 queries if the window is small, or else a range of chunks, found from
window and segments, with a running softmax (Dao et al. 2022, FlashAttention). Scores are [keys, queries].

Queries and keys are rotated here, a row's keys before its first queries, and their gradients back.

A key is read if its group is the query's: groups are segments, and masked keys have one of their own.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.ops.attention import attention_tpu_layout as layout
from pretrain.ops.attention.attention_inputs import NO_GROUP, Fixed, Settings, tiles_read
from pretrain.ops.attention.attention_tpu_layout import MASKED, TILE, Sizes

_QUERIES = 512  # queries of a grid step
_KEYS = 1_024  # keys that are computed at once
_WIDE = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class LongSizes(Sizes):
  """The sizes that a kernel for long rows is compiled for."""

  @property
  def padded(self) -> int:
    """Tokens of a row in memory: a multiple of the tile, or of a block if the row has several."""
    unit = TILE if self.length <= _QUERIES else _QUERIES
    return -(-self.length // unit) * unit

  @property
  def chunk(self) -> int:
    """Keys of a chunk."""
    return math.gcd(self.padded, _KEYS) if self.padded > _QUERIES else self.padded

  @property
  def block(self) -> int:
    """Queries of a grid step; those that read few keys are more."""
    return self.chunk if self.near else min(_QUERIES, self.padded)

  @property
  def near(self) -> int:
    """Keys that are read for a tile of queries, around it; 0: chunks of keys are."""
    if self.window is None:
      return 0
    keys = -(-(TILE + 2 * self.window) // TILE) * TILE
    return keys if keys <= min(_KEYS, self.padded) else 0


def _tiles(tokens: int) -> list[slice]:
  return [slice(start, start + TILE) for start in range(0, tokens, TILE)]


def _begin(sizes: LongSizes, refs: dict, scratch: dict) -> dict:
  """Writes what a row's first queries need: groups of keys, rotations, rotated keys; returns more `refs`.

  Groups are [padded, TILE] with equal columns. The first group of heads writes those and the rotations.
  """
  refs = refs | {"block": pl.program_id(2), "rotated": refs["key"]}
  refs |= {name: scratch[name] for name in ("rotations", "rotated") if name in scratch}
  is_first, turned = pl.program_id(1) == 0, _tiles(sizes.padded) if "rotations" in refs else ()

  @pl.when(refs["block"] == 0)
  def _():
    @pl.when(is_first)
    def _():
      row = refs["of_keys"][...]
      scratch["of_keys"][...] = jnp.transpose(jnp.broadcast_to(row, (TILE, row.shape[1])))
      for tile in turned:
        refs["rotations"][tile, :] = layout.rotations(sizes, refs["turns"][tile, :])

    for tile in turned:
      refs["rotated"][tile, :] = _turned(sizes, refs, refs["key"][tile, :], tile)

  return refs


def _turned(sizes: LongSizes, refs: dict, x: jax.Array, tokens: Any, *, is_back: bool = False) -> jax.Array:
  """Rotates [tokens, lanes] of a row, or back, if queries and keys shall be; in the dtype of keys."""
  if "rotations" in refs:
    x = layout.rotated(sizes, x, refs["rotations"][tokens, :], is_back=is_back)
  return x.astype(refs["key"].dtype)


def _of_block(sizes: LongSizes, refs: dict, tile: slice) -> Any:
  """Returns the place in the row of a tile of the block's queries."""
  return pl.ds(pl.multiple_of(refs["block"] * sizes.block + tile.start, TILE), TILE)


def _over_keys(sizes: LongSizes, refs: dict, step: Callable, states: list) -> list:
  """Updates the state of every tile of queries by `step(tile, start, size, state)` for the keys it reads.

  `start` is the first key. Tiles with chunks of keys share them, so that one computes while another waits.
  """
  block = refs["block"]
  if sizes.near:
    for number, tile in enumerate(_tiles(sizes.block)):
      first = block * sizes.block + tile.start - (sizes.near - TILE) // 2
      start = jnp.clip(first, 0, sizes.padded - sizes.near)
      states[number] = step(tile, pl.multiple_of(start, TILE // 2), sizes.near, states[number])
    return states

  def of_chunk(chunk, states: list) -> list:
    start = pl.multiple_of(chunk * sizes.chunk, sizes.chunk)
    tiles = zip(_tiles(sizes.block), states, strict=True)
    return [step(tile, start, sizes.chunk, state) for tile, state in tiles]

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


def _scaled(sizes: LongSizes, refs: dict, tile: slice) -> jax.Array:
  """Returns the queries of a tile, rotated and scaled, once for each head."""
  query = _turned(sizes, refs, refs["query"][tile, :], _of_block(sizes, refs, tile))
  return layout.by_head(sizes, query * jnp.asarray(sizes.head_dim**-0.5, query.dtype))


def forward_kernel(sizes: LongSizes, refs: dict, out: dict, scratch: dict) -> None:
  """Forward kernel: writes `out`, and `lse`, the logarithm of every query's sum of exponentials."""
  columns, refs = scratch["of_keys"], _begin(sizes, refs, scratch)
  queries = {tile.start: _scaled(sizes, refs, tile) for tile in _tiles(sizes.block)}

  def step(tile: slice, start, size: int, state: tuple) -> tuple:
    highest, total, attended = state
    scores = []
    for at in range(0, size, TILE):
      own = start + at
      allowed = _allowed(sizes, refs, columns, tile, own, TILE)
      part = layout.dot(refs["rotated"][pl.ds(own, TILE), :], queries[tile.start], layout.ROWS_BY_ROWS)
      scores.append(jnp.where(allowed, part, MASKED))
    above = jnp.maximum(highest, jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True))
    weights = [jnp.exp(part - above) for part in scores]
    shrunk = jnp.exp(highest - above)
    total = total * shrunk + jnp.sum(functools.reduce(jnp.add, weights), axis=0, keepdims=True)
    attended = attended * layout.by_lane(sizes, layout.one_below_another(sizes, shrunk))
    for number, part in enumerate(weights):
      turned = jnp.transpose(refs["value"][pl.ds(start + number * TILE, TILE), :])
      attended = attended + layout.product_by_head(sizes, turned, part.astype(turned.dtype))
    return above, total, attended

  line = (1, sizes.group * TILE)
  empty = jnp.full(line, MASKED, jnp.float32), jnp.zeros(line), jnp.zeros((sizes.lanes, TILE), jnp.float32)
  states = _over_keys(sizes, refs, step, [empty] * len(queries))
  for tile, (highest, total, attended) in zip(_tiles(sizes.block), states, strict=True):
    out["lse"][0, :, tile] = layout.one_below_another(sizes, highest + jnp.log(total))
    attended = attended * layout.by_lane(sizes, layout.one_below_another(sizes, 1.0 / total))
    out["out"][tile, :] = jnp.transpose(attended).astype(out["out"].dtype)


def backward_kernel(sizes: LongSizes, refs: dict, out: dict, scratch: dict) -> None:
  """Backward kernel: recomputes probabilities from `lse`; writes gradients of queries, keys and values."""
  columns, refs = scratch["of_keys"], _begin(sizes, refs, scratch)
  out = {name: out["all"].at[at] for at, name in enumerate(_WIDE)} if "all" in out else out

  @pl.when(refs["block"] == 0)
  def _():
    scratch["key"][...] = scratch["value"][...] = jnp.zeros(scratch["key"].shape, jnp.float32)

  of_tile: dict[int, tuple] = {}
  for tile in _tiles(sizes.block):
    d_out = refs["given"][tile, :]
    inner = jnp.transpose(d_out.astype(jnp.float32) * refs["out"][tile, :].astype(jnp.float32))
    of_tile[tile.start] = (
      _scaled(sizes, refs, tile),
      layout.by_head(sizes, d_out),
      layout.side_by_side(layout.over_lanes(sizes, inner)),
      layout.side_by_side(refs["lse"][0, :, tile]),
    )

  def step(tile: slice, start, size: int, d_query: jax.Array) -> jax.Array:
    query, d_out, inner, lse = of_tile[tile.start]
    keys = pl.ds(start, size)
    key, value = refs["rotated"][keys, :], refs["value"][keys, :]
    allowed = _allowed(sizes, refs, columns, tile, start, size)
    weights = jnp.exp(layout.dot(key, query, layout.ROWS_BY_ROWS) - lse)
    weights = jnp.where(allowed, weights, 0.0)
    d_scores = weights * (layout.dot(value, d_out, layout.ROWS_BY_ROWS) - inner)
    d_scores = d_scores.astype(key.dtype)
    scratch["value"][keys, :] += layout.dot(weights.astype(value.dtype), d_out, layout.PRODUCT)
    scratch["key"][keys, :] += layout.dot(d_scores, query, layout.PRODUCT)
    return d_query + layout.product_by_head(sizes, jnp.transpose(key), d_scores)

  none: list[Any] = [jnp.zeros((sizes.lanes, TILE), jnp.float32)] * len(of_tile)
  for tile, d_query in zip(_tiles(sizes.block), _over_keys(sizes, refs, step, none), strict=True):
    d_query = jnp.transpose(d_query) * sizes.head_dim**-0.5
    place = _of_block(sizes, refs, tile)
    out["query"][place, :] = _turned(sizes, refs, d_query, place, is_back=True)

  @pl.when(refs["block"] == sizes.padded // sizes.block - 1)
  def _():
    for tile in _tiles(sizes.padded):
      out["key"][tile, :] = _turned(sizes, refs, scratch["key"][tile, :], tile, is_back=True)
    out["value"][...] = scratch["value"][...].astype(out["value"].dtype)


LONGEST = 8_192  # tokens: keys and values of a longer row, with their gradients, exceed VMEM


def _sizes(settings: Settings, query: jax.Array, key: jax.Array | None) -> LongSizes:
  rows, length, width = query.shape
  width //= 3 if key is None else 1
  return LongSizes(rows, length, width // settings.head_dim, settings.head_dim, 0.0, settings.window)


def _padded(sizes: LongSizes, x: jax.Array, value: int = 0) -> jax.Array:
  """Pads [rows, length, ...] to the length in memory."""
  padding = [(0, 0), (0, sizes.padded - sizes.length), *[(0, 0)] * (x.ndim - 2)]
  return jnp.pad(x, padding, constant_values=value)


def _inputs(sizes: LongSizes, fixed: Fixed, **wide: jax.Array | None) -> dict:
  """Returns one device's arrays for the kernels; without `key` and `value`, `query` is there three times."""
  segments = fixed.segment_ids
  segments = jnp.zeros((sizes.rows, sizes.length), jnp.int32) if segments is None else segments
  of_keys = _padded(sizes, jnp.where(fixed.key_mask, segments, NO_GROUP), NO_GROUP)
  arrays = {name: _padded(sizes, x) for name, x in wide.items() if x is not None}
  arrays = dict.fromkeys(_WIDE, arrays["query"]) | arrays
  arrays |= {"of_queries": _padded(sizes, segments)[:, None, :], "of_keys": of_keys[:, None, :]}
  if fixed.turns is not None:
    arrays["turns"] = _padded(sizes, fixed.turns)
  if sizes.near:
    return arrays
  ranges = tiles_read(of_keys, sizes.window, block=sizes.block, tile=sizes.chunk)
  return arrays | {"ranges": jnp.stack(ranges, axis=-1)}


def _call(sizes: LongSizes, kernel: str, arrays: dict, *, interpret: bool) -> dict:
  """Runs the kernel 'forward' (returns 'out', 'lse') or 'backward' on one device.

  'backward' returns gradients by name; of queries, keys and values in one array, it returns 'all',
  [3, rows, padded, width], where the gradient of their product finds the three without copies.
  """
  dtype, count = arrays["query"].dtype, sizes.padded // sizes.block
  is_packed = arrays["query"].shape[-1] > sizes.groups * sizes.lanes

  def wide(tokens: int, number: int = 0) -> pl.BlockSpec:
    """Returns the spec of one group's `tokens`; in one array of all three, queries are `number` 0, keys 1."""
    first, is_row = number * sizes.groups * is_packed, tokens == sizes.padded
    return pl.BlockSpec(
      (None, tokens, sizes.lanes), lambda row, group, at: (row, 0 if is_row else at, first + group)
    )

  inputs = {name: wide(sizes.padded if number else sizes.block, number) for number, name in enumerate(_WIDE)}
  inputs |= {
    "given": wide(sizes.block),
    "out": wide(sizes.block),
    "of_queries": pl.BlockSpec((None, 1, sizes.block), lambda row, group, at: (row, 0, at)),
    "of_keys": pl.BlockSpec((None, 1, sizes.padded), lambda row, group, at: (row, 0, 0)),
    "turns": pl.BlockSpec((None, sizes.padded, sizes.head_dim), lambda row, group, at: (row, 0, 0)),
    "lse": pl.BlockSpec((None, 1, sizes.group, sizes.block), lambda row, group, at: (row, group, 0, at)),
    "ranges": pl.BlockSpec(memory_space=pltpu.SMEM),
  }
  shape = (sizes.rows, sizes.padded, sizes.groups * sizes.lanes)
  scratch: dict[str, Any] = {"of_keys": pltpu.VMEM((sizes.padded, TILE), jnp.int32)}
  if "turns" in arrays:
    scratch["rotated"] = pltpu.VMEM((sizes.padded, sizes.lanes), dtype)
    scratch["rotations"] = pltpu.VMEM((sizes.padded, 2 * sizes.lanes), jnp.float32)
  if kernel == "forward":
    lse = jax.ShapeDtypeStruct((sizes.rows, sizes.groups, sizes.group, sizes.padded), jnp.float32)
    results: dict[str, Any] = {"out": jax.ShapeDtypeStruct(shape, dtype), "lse": lse}
    specs, products, body = {name: inputs[name] for name in results}, 2, forward_kernel
  else:
    sums = pltpu.VMEM((sizes.padded, sizes.lanes), jnp.float32)
    scratch |= {"key": sums, "value": sums}
    products, body = 5, backward_kernel
    if is_packed:
      results = {"all": jax.ShapeDtypeStruct((3, *shape), dtype)}
      block = (3, None, sizes.padded, sizes.lanes)
      specs = {"all": pl.BlockSpec(block, lambda row, group, at: (0, row, 0, group))}
    else:
      results = dict.fromkeys(_WIDE, jax.ShapeDtypeStruct(shape, dtype))
      specs = dict.fromkeys(_WIDE, wide(sizes.padded))
  pairs = sizes.rows * sizes.heads * sizes.padded * (sizes.near or sizes.padded)
  leaves = {id(leaf): leaf for leaf in jax.tree.leaves((arrays, results))}.values()
  moved = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
  return pl.pallas_call(
    functools.partial(body, sizes),
    out_shape=results,
    grid=(sizes.rows, sizes.groups, count),
    in_specs=[{name: inputs[name] for name in arrays}],
    out_specs=specs,
    scratch_shapes=[scratch],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=_vmem_bytes(sizes, dtype)
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * products * pairs * sizes.head_dim, transcendentals=pairs, bytes_accessed=moved
    ),
    interpret=interpret,
    name=f"attention_long_{kernel}",
  )(arrays)


def _vmem_bytes(sizes: LongSizes, dtype: jnp.dtype) -> int:
  """Returns an upper bound of a kernel's VMEM: a row's arrays twice, sums, tiles."""
  row = sizes.padded * max(sizes.lanes, TILE)
  tiles = 24 * sizes.group * TILE * (sizes.near or sizes.chunk) * 4
  return max(16 << 20, row * (11 * jnp.dtype(dtype).itemsize + 28) + tiles + (8 << 20))


def forward(settings: Settings, query, key, value, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
  """Returns attention [rows, length, heads * head_dim], and the log of each query's sum of exponentials.

  Without `key` and `value`, `query` has all three side by side.
  """
  sizes = _sizes(settings, query, key)
  inputs = _inputs(sizes, fixed, query=query, key=key, value=value)
  results = _call(sizes, "forward", inputs, interpret=settings.interpret)
  return results["out"][:, : sizes.length], results["lse"]


def backward(settings: Settings, query, key, value, fixed: Fixed, out, lse, given) -> tuple:
  """Returns gradients of query, key and value, and of biases added to them, [3, heads * head_dim]."""
  sizes = _sizes(settings, query, key)
  inputs = _inputs(sizes, fixed, query=query, key=key, value=value, given=given, out=out) | {"lse": lse}
  results = _call(sizes, "backward", inputs, interpret=settings.interpret)
  wide = results["all"] if key is None else [results[name] for name in _WIDE]
  gradients = [x[:, : sizes.length] for x in wide]
  d_added = jnp.stack([jnp.sum(x, axis=(0, 1), dtype=jnp.float32) for x in gradients])
  if key is None:
    together = jnp.moveaxis(results["all"][:, :, : sizes.length], 0, 2)
    gradients = [jnp.reshape(together, query.shape), None, None]
  return *gradients, None, d_added
