"""Attention of long rows on TPUs: prepares one device's arrays for `attention_long_tile`, and calls it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.ops.attention.attention_inputs import NO_GROUP, Fixed, Settings, tiles_read
from pretrain.ops.attention.attention_long_sizes import LongSizes
from pretrain.ops.attention.attention_long_tile import backward as backward_kernel
from pretrain.ops.attention.attention_long_tile import forward as forward_kernel
from pretrain.ops.attention.attention_sizes import TILE

LONGEST = 8_192  # tokens: keys and values of a longer row, with their gradients, exceed VMEM


def _sizes(settings: Settings, query: jax.Array) -> LongSizes:
  rows, length, width = query.shape
  return LongSizes(rows, length, width // settings.head_dim, settings.head_dim, 0.0, settings.window)


def _padded(sizes: LongSizes, x: jax.Array, value: int = 0) -> jax.Array:
  """Pads [rows, length, ...] to the length in memory."""
  padding = [(0, 0), (0, sizes.padded - sizes.length), *[(0, 0)] * (x.ndim - 2)]
  return jnp.pad(x, padding, constant_values=value)


def _inputs(sizes: LongSizes, wide: dict, fixed: Fixed) -> dict:
  """Returns one device's arrays for the kernels."""
  segments = fixed.segment_ids
  segments = jnp.zeros((sizes.rows, sizes.length), jnp.int32) if segments is None else segments
  of_keys = _padded(sizes, jnp.where(fixed.key_mask, segments, NO_GROUP), NO_GROUP)
  arrays = {name: _padded(sizes, x) for name, x in wide.items()}
  arrays |= {"of_queries": _padded(sizes, segments)[:, None, :], "of_keys": of_keys[:, None, :]}
  if sizes.near:
    return arrays
  ranges = tiles_read(of_keys, sizes.window, block=sizes.block, tile=sizes.chunk)
  return arrays | {"ranges": jnp.stack(ranges, axis=-1)}


def _call(sizes: LongSizes, kernel: str, arrays: dict, *, interpret: bool) -> dict:
  """Runs the kernel 'forward' (returns 'out', 'lse') or 'backward' (gradients by name) on one device."""
  dtype, count = arrays["query"].dtype, sizes.padded // sizes.block
  block = pl.BlockSpec((None, sizes.block, sizes.lanes), lambda row, group, at: (row, at, group))
  whole = pl.BlockSpec((None, sizes.padded, sizes.lanes), lambda row, group, at: (row, 0, group))
  specs = dict.fromkeys(("query", "given", "out"), block) | dict.fromkeys(("key", "value"), whole)
  specs |= {
    "of_queries": pl.BlockSpec((None, 1, sizes.block), lambda row, group, at: (row, 0, at)),
    "of_keys": pl.BlockSpec((None, 1, sizes.padded), lambda row, group, at: (row, 0, 0)),
    "lse": pl.BlockSpec((None, 1, sizes.group, sizes.block), lambda row, group, at: (row, group, 0, at)),
    "ranges": pl.BlockSpec(memory_space=pltpu.SMEM),
  }
  wide = jax.ShapeDtypeStruct(arrays["query"].shape, dtype)
  scratch: dict[str, Any] = {"of_keys": pltpu.VMEM((sizes.padded, TILE), jnp.int32)}
  if kernel == "forward":
    lse = jax.ShapeDtypeStruct((sizes.rows, sizes.groups, sizes.group, sizes.padded), jnp.float32)
    results: dict[str, Any] = {"out": wide, "lse": lse}
    products, body = 2, forward_kernel
  else:
    results = dict.fromkeys(("query", "key", "value"), wide)
    sums = pltpu.VMEM((sizes.padded, sizes.lanes), jnp.float32)
    scratch |= {"key": sums, "value": sums}
    products, body = 5, backward_kernel
  pairs = sizes.rows * sizes.heads * sizes.padded * (sizes.near or sizes.padded)
  moved = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((arrays, results)))
  return pl.pallas_call(
    functools.partial(body, sizes),
    out_shape=results,
    grid=(sizes.rows, sizes.groups, count),
    in_specs=[{name: specs[name] for name in arrays}],
    out_specs={name: specs[name] for name in results},
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
  """Returns an upper bound of a kernel's VMEM: a row's keys, values and gradients twice, sums, tiles."""
  row = sizes.padded * max(sizes.lanes, TILE)
  tiles = 24 * sizes.group * TILE * (sizes.near or sizes.chunk) * 4
  return max(16 << 20, row * (8 * jnp.dtype(dtype).itemsize + 12) + tiles + (8 << 20))


def forward(settings: Settings, query, key, value, fixed: Fixed) -> tuple[jax.Array, jax.Array]:
  """Returns attention [rows, length, heads * head_dim], and the log of each query's sum of exponentials."""
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, {"query": query, "key": key, "value": value}, fixed)
  results = _call(sizes, "forward", inputs, interpret=settings.interpret)
  return results["out"][:, : sizes.length], results["lse"]


def backward(settings: Settings, query, key, value, fixed: Fixed, out, lse, given) -> tuple:
  """Returns gradients of query, key and value, and of biases added to them, [3, heads * head_dim]."""
  sizes = _sizes(settings, query)
  wide = {"query": query, "key": key, "value": value, "given": given, "out": out}
  inputs = _inputs(sizes, wide, fixed) | {"lse": lse}
  results = _call(sizes, "backward", inputs, interpret=settings.interpret)
  gradients = [results[name][:, : sizes.length] for name in ("query", "key", "value")]
  d_added = jnp.stack([jnp.sum(x, axis=(0, 1), dtype=jnp.float32) for x in gradients])
  return *gradients, None, d_added
