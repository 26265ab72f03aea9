"""Pallas kernels for TPUs: attention of short rows, forward and backward, without scores in HBM.

One grid step has in VMEM the queries, keys and values of one row, or of several short ones, and of one group
of heads. It iterates over tiles of 128 queries. A tile reads all keys at once, so its softmax is an ordinary
one. Scores are transposed, [keys, queries]: a sum over keys adds registers, and values of a query are a row.
A group of heads shares a tile, see `attention_tpu_layout`.

The relative bias is a vector over distances. The first row of a group of heads expands it to [keys, queries]
in VMEM, where later rows read it. Its gradient is summed there over all rows and folded after the last.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.ops import row_random
from pretrain.ops.attention import attention_tpu_layout as layout
from pretrain.ops.attention import attention_tpu_long
from pretrain.ops.attention.attention_inputs import Fixed, Settings
from pretrain.ops.attention.attention_tpu_layout import MASKED, SUBLANES, TILE, Sizes

_OF_ROWS = frozenset(("query", "key", "value", "given", "out", "lse", "key_bias", "segments"))


def _real(sizes: Sizes, tokens: jax.Array, first=0) -> jax.Array:
  """Returns tokens [tokens, lanes] of a row from `first` on; 0 beyond its end, where memory is undefined."""
  if sizes.padded == sizes.length:
    return tokens
  at = first + jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
  return jnp.where(at < sizes.length, tokens, jnp.zeros_like(tokens))


def _scores(
  sizes: Sizes, refs: dict, spread, masks: tuple, key: jax.Array, query: jax.Array, tile, keys: slice
) -> jax.Array:
  """Computes [keys, group * TILE] float32 scores, with `MASKED` where a key may not be read."""
  at = pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)
  scores = layout.dot(key[keys], query, layout.ROWS_BY_ROWS)
  if spread is not None:
    scores = scores + jnp.concatenate([spread[head, keys, at] for head in range(sizes.group)], axis=1)
  key_bias, key_segment = masks[0][keys], None if masks[1] is None else masks[1][keys]
  allowed = None
  if key_segment is not None:
    allowed = key_segment == refs["segments"][:, at]
  if sizes.window is not None:
    of_key = jax.lax.broadcasted_iota(jnp.int32, key_bias.shape, 0) + keys.start
    of_query = jax.lax.broadcasted_iota(jnp.int32, key_bias.shape, 1) + tile * TILE
    near = jnp.abs(of_key - of_query) <= sizes.window
    allowed = near if allowed is None else allowed & near
  scores = scores + jnp.concatenate([key_bias] * sizes.group, axis=1)
  if allowed is None:
    return scores
  # Padding stays at minus infinity, because it must not count in the average of a query without keys.
  allowed = allowed | (key_bias == -jnp.inf)
  return jnp.where(jnp.concatenate([allowed] * sizes.group, axis=1), scores, MASKED)


def _columns(row: jax.Array) -> jax.Array:
  """Transposes [1, padded] to [padded, TILE], with equal columns."""
  return jnp.transpose(jnp.broadcast_to(row, (TILE, row.shape[1])))


def _masks(refs: dict) -> tuple:
  """Returns the keys' masks for a tile of scores, [padded, TILE]: an additive bias, and segments or None."""
  segments = refs["segments"]
  return _columns(refs["key_bias"][...]), None if segments is None else _columns(segments[...])


def _kept(sizes: Sizes, refs: dict, place: tuple, tile, keys: slice) -> jax.Array | None:
  """Draws dropout's mask of kept scores, [keys, group * TILE] bool, as `row_random.row_kept_of_heads`."""
  if not sizes.dropout_rate:
    return None
  group, row = place
  query = tile * TILE + jax.lax.broadcasted_iota(jnp.int32, (1, TILE), 1)
  words = [refs["words"][row, at].astype(jnp.uint32) for at in range(2)]
  first = refs["first_head"][0, 0] + group * sizes.group

  def bits_of(pair) -> jax.Array:
    of_query = row_random.counter_bits((pair * sizes.length + query).astype(jnp.uint32), *words)
    return row_random.pair_bits(of_query, refs["key_words"][keys].astype(jnp.uint32))

  if sizes.group % 2:  # then a group may begin with the second head of a pair
    drawn = [(bits_of((first + at) >> 1), (first + at) & 1) for at in range(sizes.group)]
  else:
    pairs = [bits_of((first >> 1) + pair) for pair in range(sizes.group // 2)]
    drawn = [(bits, half) for bits in pairs for half in range(2)]
  kept = [row_random.pair_kept(bits, half, rate=sizes.dropout_rate) for bits, half in drawn]
  return jnp.concatenate(kept, axis=1)


def _spread(sizes: Sizes, distances, spread) -> None:
  """Expands distances [1, group, 8, 2 padded] to [group, padded, padded]: row k is row 0 shifted by k."""
  for head in range(sizes.group):
    rows = distances[0, head]
    while rows.shape[0] < TILE:
      rows = jnp.concatenate([rows, pltpu.roll(rows, rows.shape[0], 1)], axis=0)
    for start in range(0, sizes.padded, TILE):
      moved = pltpu.roll(rows, start, 1) if start else rows
      spread[head, start : start + TILE, :] = moved[:, : sizes.padded]


def _fold(sizes: Sizes, summed: jax.Array) -> jax.Array:
  """Transposes `_spread` for one head: sums [padded, padded] to [8, 2 padded]."""
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
  """Runs `body` for every tile, unrolled up to four times, so that one computes while another waits."""
  unroll = sizes.tiles if sizes.tiles <= 4 else math.gcd(sizes.tiles, 4)
  jax.lax.fori_loop(0, sizes.tiles, body, 0, unroll=unroll)


def _scaled(sizes: Sizes, query: jax.Array, tile) -> jax.Array:
  return _real(sizes, query, tile * TILE) * jnp.asarray(sizes.head_dim**-0.5, query.dtype)


def _of_row(refs: dict, at: int) -> dict:
  """Returns the arrays of a grid step, with arrays of rows reduced to one row."""
  return {name: ref.at[at] if name in _OF_ROWS and ref is not None else ref for name, ref in refs.items()}


def forward_kernel(sizes: Sizes, refs: dict, out: dict, scratch: dict) -> None:
  """Forward kernel: writes `out`, and `lse`, the logarithm of every query's sum of exponentials."""
  group, step = pl.program_id(0), pl.program_id(1)
  pl.when(step == 0)(lambda: _begin(sizes, refs, scratch))
  refs = refs | {"key_words": scratch["key_words"]}
  for at in range(sizes.at_once):
    _attend(sizes, _of_row(refs, at), _of_row(out, at), scratch["spread"], (group, step * sizes.at_once + at))


def _attend(sizes: Sizes, refs: dict, out: dict, spread, place: tuple) -> None:
  """Computes a row's forward pass; `place` is (group of heads, row number)."""
  key, value = (_real(sizes, refs[name][...]) for name in ("key", "value"))
  masks = _masks(refs)

  def tile_of(tile, _):
    at = pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)
    query = layout.by_head(sizes, _scaled(sizes, refs["query"][at, :], tile))
    # Pieces of keys fit the registers, so that the compiler moves less between them and VMEM.
    pieces = [slice(start, start + TILE) for start in range(0, sizes.padded, TILE)]
    scores = [_scores(sizes, refs, spread, masks, key, query, tile, keys) for keys in pieces]
    highest = jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True)
    weights = [jnp.exp(part - highest) for part in scores]
    total = jnp.sum(functools.reduce(jnp.add, weights), axis=0, keepdims=True)
    out["lse"][0, :, at] = layout.one_below_another(sizes, highest + jnp.log(total))
    product = jnp.zeros((sizes.lanes, sizes.group * TILE), jnp.float32)
    for part, keys in zip(weights, pieces):
      kept = _kept(sizes, refs, place, tile, keys)
      part = part if kept is None else jnp.where(kept, part, 0.0)
      product = product + layout.dot(value[keys], part.astype(value.dtype), layout.COLUMNS_BY_COLUMNS)
    product = product * (1.0 / (total * (1.0 - sizes.dropout_rate)))
    out["out"][at, :] = jnp.transpose(layout.joined(sizes, product)).astype(value.dtype)
    return 0

  _over_tiles(sizes, tile_of)


def backward_kernel(sizes: Sizes, refs: dict, out: dict, scratch: dict) -> None:
  """Backward kernel: recomputes probabilities from `lse` and writes all gradients."""
  group, step = pl.program_id(0), pl.program_id(1)

  @pl.when(step == 0)
  def _():
    _begin(sizes, refs, scratch)
    out["biases"][...] = jnp.zeros_like(out["biases"])
    if scratch["summed"] is not None:
      scratch["summed"][...] = jnp.zeros_like(scratch["summed"])

  refs = refs | {"key_words": scratch["key_words"]}
  for at in range(sizes.at_once):
    place = group, step * sizes.at_once + at
    _differentiate(sizes, _of_row(refs, at), _of_row(out, at), _of_row(scratch, at), place)
  if scratch["summed"] is not None:

    @pl.when(step == sizes.rows // sizes.at_once - 1)
    def _():
      for head in range(sizes.group):
        out["distances"][0, head] = _fold(sizes, scratch["summed"][head])


def _differentiate(sizes: Sizes, refs: dict, out: dict, scratch: dict, place: tuple) -> None:
  spread, summed = scratch["spread"], scratch["summed"]
  key, value = (_real(sizes, refs[name][...]) for name in ("key", "value"))
  masks, turned_key, keys = _masks(refs), jnp.transpose(key), slice(0, sizes.padded)
  d_key, d_value = scratch["key"], scratch["value"]
  d_key[...] = d_value[...] = jnp.zeros((sizes.padded, sizes.lanes), jnp.float32)

  def tile_of(tile, _):
    at = pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)
    query = _scaled(sizes, refs["query"][at, :], tile)
    given, attended = (_real(sizes, refs[name][at, :], tile * TILE) for name in ("given", "out"))
    d_output = given.astype(jnp.float32) * (1.0 / (1.0 - sizes.dropout_rate))
    lse = refs["lse"][0, :, at]
    # A query without keys has an lse of MASKED: its probabilities become 1 instead of 1 / length, and its
    # scores must get no gradient.
    live = jnp.transpose(layout.by_lane(sizes, (lse > 0.5 * MASKED).astype(jnp.float32)))
    averaged = (d_output * jnp.where(live > 0, 1.0, 1.0 / sizes.length)).astype(value.dtype)
    inner = jnp.transpose(d_output * live * (1.0 - sizes.dropout_rate) * attended.astype(jnp.float32))
    d_output = (d_output * live).astype(value.dtype)
    query = layout.by_head(sizes, query)
    scores = _scores(sizes, refs, spread, masks, key, query, tile, keys)
    weights = jnp.exp(scores - layout.side_by_side(lse))
    d_weights = layout.dot(value, layout.by_head(sizes, d_output), layout.ROWS_BY_ROWS)
    kept = _kept(sizes, refs, place, tile, keys)
    dropped = weights
    if kept is not None:
      dropped = jnp.where(kept, weights, 0.0)
      d_weights = jnp.where(kept, d_weights, 0.0)
    d_value[...] += layout.dot(dropped.astype(value.dtype), layout.by_head(sizes, averaged), layout.PRODUCT)
    d_scores = weights * (d_weights - layout.side_by_side(layout.over_lanes(sizes, inner)))
    if summed is not None:
      for head in range(sizes.group):
        summed[head, :, at] += d_scores[:, head * TILE : (head + 1) * TILE]
    d_scores = d_scores.astype(key.dtype)
    d_key[...] += layout.dot(d_scores, query, layout.PRODUCT)
    d_query = jnp.transpose(layout.product_by_head(sizes, turned_key, d_scores)) * sizes.head_dim**-0.5
    out["query"][at, :] = d_query.astype(key.dtype)
    out["biases"][0, :1] += jnp.sum(d_query, axis=0, keepdims=True)
    return 0

  _over_tiles(sizes, tile_of)
  out["key"][...] = d_key[...].astype(key.dtype)
  out["value"][...] = d_value[...].astype(value.dtype)
  for at, summand in ((1, d_key), (2, d_value)):
    out["biases"][0, at : at + 1] += jnp.sum(summand[...], axis=0, keepdims=True)


def _begin(sizes: Sizes, refs: dict, scratch: dict) -> None:
  """Prepares, before the first row of a group of heads, the bias and the dropout words of keys."""
  if scratch["spread"] is not None:
    _spread(sizes, refs["distances"], scratch["spread"])
  if scratch["key_words"] is not None:
    scratch["key_words"][...] = _columns(refs["key_words"][...])


def _specs(sizes: Sizes) -> dict:
  """Returns the block spec of each array, by name, for a grid step (group of heads, rows)."""
  count = sizes.at_once
  whole = pl.BlockSpec((count, sizes.padded, sizes.lanes), lambda group, rows: (rows, 0, group))
  of_row = pl.BlockSpec((count, 1, sizes.padded), lambda group, rows: (rows, 0, 0))
  of_group = (1, sizes.group, SUBLANES, 2 * sizes.padded)
  specs = dict.fromkeys(("query", "key", "value", "given", "out"), whole)
  specs |= dict.fromkeys(("key_bias", "segments"), of_row)
  specs |= dict.fromkeys(("words", "first_head"), pl.BlockSpec(memory_space=pltpu.SMEM))
  return specs | {
    "key_words": pl.BlockSpec((1, sizes.padded), lambda group, rows: (0, 0)),
    "distances": pl.BlockSpec(of_group, lambda group, rows: (group, 0, 0, 0)),
    "lse": pl.BlockSpec((count, 1, sizes.group, sizes.padded), lambda group, rows: (rows, group, 0, 0)),
    "biases": pl.BlockSpec((1, 3, sizes.lanes), lambda group, rows: (group, 0, 0)),
  }


def _call(sizes: Sizes, kernel: str, arrays: dict, *, interpret: bool) -> dict:
  """Runs the kernel 'forward' (returns 'out', 'lse') or 'backward' (gradients by name) on one device.

  'biases', [groups, 3, lanes] float32, are the sums of the gradients of query, key and value over all tokens.

  Args:
    kernel: 'forward' or 'backward'.
    arrays: 'query', 'key', 'value' (for the backward pass 'given', the gradient of 'out', and 'out') [rows,
      length, heads * head_dim]; 'distances' [groups, group, 8, 2 padded] float32 or None; 'key_bias' [rows,
      1, padded] float32; 'segments' [rows, 1, padded] int32 or None; 'words' [rows, 2] and 'key_words' [1,
      padded] int32 or None; 'first_head' [1, 1] int32; 'lse' [rows, groups, group, padded] float32.
    interpret: whether to run it as ordinary operations, for tests.
  """
  dtype, specs = arrays["query"].dtype, _specs(sizes)
  wide = jax.ShapeDtypeStruct(arrays["query"].shape, dtype)
  square = pltpu.VMEM((sizes.group, sizes.padded, sizes.padded), jnp.float32)
  has_bias = arrays["distances"] is not None
  key_words = None if arrays["key_words"] is None else pltpu.VMEM((sizes.padded, TILE), jnp.int32)
  scratch: dict[str, Any] = {"spread": square if has_bias else None, "key_words": key_words}
  if kernel == "forward":
    lse = (sizes.rows, sizes.groups, sizes.group, sizes.padded)
    results: dict[str, Any] = {"out": wide, "lse": jax.ShapeDtypeStruct(lse, jnp.float32)}
    products, body = 2, forward_kernel
  else:
    results = dict.fromkeys(("query", "key", "value"), wide)
    results["biases"] = jax.ShapeDtypeStruct((sizes.groups, 3, sizes.lanes), jnp.float32)
    if has_bias:
      results["distances"] = jax.ShapeDtypeStruct(arrays["distances"].shape, jnp.float32)
    sums = pltpu.VMEM((sizes.at_once, sizes.padded, sizes.lanes), jnp.float32)
    scratch |= {"summed": scratch["spread"], "key": sums, "value": sums}
    products, body = 5, backward_kernel
  pairs = sizes.rows * sizes.heads * sizes.padded**2
  moved = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((arrays, results)))
  return pl.pallas_call(
    functools.partial(body, sizes),
    out_shape=results,
    grid=(sizes.groups, sizes.rows // sizes.at_once),
    in_specs=[{name: None if array is None else specs[name] for name, array in arrays.items()}],
    out_specs={name: specs[name] for name in results},
    scratch_shapes=[scratch],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_vmem_bytes(sizes)
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * products * pairs * max(sizes.head_dim, TILE), transcendentals=pairs, bytes_accessed=moved
    ),
    interpret=interpret,
    name=f"attention_{kernel}",
  )(arrays)


def _vmem_bytes(sizes: Sizes) -> int:
  """Returns an upper bound of a kernel's VMEM: bias and its gradient, a row's arrays twice, tiles."""
  squares = 2 * sizes.group * sizes.padded**2 * 4
  row = sizes.at_once * 12 * 2 * sizes.padded * max(sizes.lanes, TILE) * 4
  tiles = sizes.at_once * 12 * sizes.group * sizes.padded * TILE * 4
  return max(16 << 20, squares + row + tiles)


LONGEST = 1_024  # tokens: a longer row's bias [heads of a group, length, length], with gradient, exceeds VMEM


def _is_long(settings: Settings, query: jax.Array, bias: jax.Array | None, fixed: Fixed) -> bool:
  """Returns whether the kernels for long rows do: they skip what windows and segments hide, and rotate."""
  is_masked = settings.window is not None or fixed.segment_ids is not None or fixed.turns is not None
  return bias is None and not settings.dropout_rate and (is_masked or query.shape[1] > LONGEST)


def _sizes(settings: Settings, query: jax.Array) -> Sizes:
  rows, length, width = query.shape
  heads = width // settings.head_dim
  return Sizes(rows, length, heads, settings.head_dim, settings.dropout_rate, settings.window)


def _inputs(sizes: Sizes, part, query, key, value, bias, fixed: Fixed) -> dict:
  """Returns one device's arrays for the kernels; arrays over keys alone are padded."""
  more = sizes.padded - sizes.length
  key_bias = jnp.where(fixed.key_mask, 0.0, MASKED)[:, None, :].astype(jnp.float32)
  segments = fixed.segment_ids
  words = jnp.zeros((sizes.rows, 2), jnp.uint32) if fixed.words is None else fixed.words
  key_words = row_random.column_words(sizes.padded).astype(np.int32)[None] if sizes.dropout_rate else None
  return {
    "words": words,
    "key_words": key_words,
    "first_head": jnp.reshape(part * sizes.heads, (1, 1)).astype(jnp.int32),
    "distances": None if bias is None else _moved_copies(sizes, bias.astype(jnp.float32)),
    "key_bias": jnp.pad(key_bias, ((0, 0), (0, 0), (0, more)), constant_values=-np.inf),
    "segments": None if segments is None else jnp.pad(segments, ((0, 0), (0, more)))[:, None, :],
    "query": query,
    "key": key,
    "value": value,
  }


def _places(sizes: Sizes) -> np.ndarray:
  """Returns the column of distance d (key - query + length - 1) in each of 8 copies: [8, 2 length - 1] int.

  In the copy of key k (modulo 8) query q reads column q, so distance k - q is at column k minus the distance.
  """
  wide = 2 * sizes.padded
  distances = np.arange(2 * sizes.length - 1) - (sizes.length - 1)
  return (np.arange(SUBLANES)[:, None] - distances[None, :]) % wide


def _moved_copies(sizes: Sizes, bias: jax.Array) -> jax.Array:
  """Returns eight shifted copies of the bias by distance; key k reads copy k modulo 8."""
  wide = 2 * sizes.padded
  source = np.full((SUBLANES, wide), 2 * sizes.length - 1)  # index of the 0 after the last distance
  np.put_along_axis(source, _places(sizes), np.arange(2 * sizes.length - 1)[None, :], axis=1)
  copies = jnp.pad(bias, ((0, 0), (0, 1)))[:, source]
  return jnp.reshape(copies, (sizes.groups, sizes.group, SUBLANES, wide))


def forward(settings: Settings, part, query, *arrays) -> tuple[jax.Array, jax.Array]:
  """Returns attention [rows, length, heads * head_dim], and the log of each query's sum of exponentials."""
  key, value, bias, fixed = arrays
  if _is_long(settings, query, bias, fixed):
    return attention_tpu_long.forward(settings, query, key, value, fixed)
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, part, query, *arrays)
  results = _call(sizes, "forward", inputs, interpret=settings.interpret)
  return results["out"], results["lse"]


def backward(settings: Settings, part, query, key, value, bias, fixed, out, lse, given) -> tuple:
  """Returns gradients of query, key, value, bias, and of biases added to query, key and value."""
  if _is_long(settings, query, bias, fixed):
    return attention_tpu_long.backward(settings, query, key, value, fixed, out, lse, given)
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, part, query, key, value, bias, fixed)
  inputs |= {"out": out, "given": given, "lse": lse}
  results = _call(sizes, "backward", inputs, interpret=settings.interpret)
  d_bias = None
  if bias is not None:
    copies = jnp.reshape(results["distances"], (sizes.heads, SUBLANES, -1))
    copy = np.arange(SUBLANES)[:, None]
    d_bias = jnp.sum(copies[:, copy, _places(sizes)], axis=1).astype(bias.dtype)
  d_added = jnp.reshape(jnp.moveaxis(results["biases"], 0, 1), (3, -1))
  return results["query"], results["key"], results["value"], d_bias, d_added
