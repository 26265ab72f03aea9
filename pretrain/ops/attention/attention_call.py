"""Calls the kernels of `attention_tile` with their block specs, memory limits and cost estimates."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pretrain.ops.attention.attention_sizes import SUBLANES, TILE, Sizes
from pretrain.ops.attention.attention_tile import backward, forward


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


def call(sizes: Sizes, kernel: str, arrays: dict, *, interpret: bool) -> dict:
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
    products, body = 2, forward
  else:
    results = dict.fromkeys(("query", "key", "value"), wide)
    results["biases"] = jax.ShapeDtypeStruct((sizes.groups, 3, sizes.lanes), jnp.float32)
    if has_bias:
      results["distances"] = jax.ShapeDtypeStruct(arrays["distances"].shape, jnp.float32)
    sums = pltpu.VMEM((sizes.at_once, sizes.padded, sizes.lanes), jnp.float32)
    scratch |= {"summed": scratch["spread"], "key": sums, "value": sums}
    products, body = 5, backward
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
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_bytes(sizes)
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * products * pairs * max(sizes.head_dim, TILE), transcendentals=pairs, bytes_accessed=moved
    ),
    interpret=interpret,
    name=f"attention_{kernel}",
  )(arrays)


def vmem_bytes(sizes: Sizes) -> int:
  """Returns an upper bound of a kernel's VMEM: bias and its gradient, a row's arrays twice, tiles."""
  squares = 2 * sizes.group * sizes.padded**2 * 4
  row = sizes.at_once * 12 * 2 * sizes.padded * max(sizes.lanes, TILE) * 4
  tiles = sizes.at_once * 12 * sizes.group * sizes.padded * TILE * 4
  return max(16 << 20, squares + row + tiles)
