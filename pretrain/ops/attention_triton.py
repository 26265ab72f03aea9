"""Attention on NVIDIA GPUs: the arrays of `attention_triton_kernels`, as one device has them."""

import importlib.util
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops import row_random
from pretrain.ops.attention_inputs import Fixed, Settings

PACKAGES = ("jax_triton", "triton")
STAGES = 2  # tiles whose arrays are in shared memory at once: one is read while one is computed
BLOCK = 64  # queries and keys of a tile in the backward pass
_BLOCKS = {"forward": (128, 64), "backward_query": (BLOCK, BLOCK), "backward_key": (BLOCK, BLOCK)}
_NO_GROUP = np.iinfo(np.int32).min  # the segment of keys that none may read


def is_installed() -> bool:
  """Whether what compiles the kernels can be imported."""
  return all(importlib.util.find_spec(name) for name in PACKAGES)


def forward(settings: Settings, part, query, key, value, bias, fixed) -> tuple[jax.Array, jax.Array]:
  """[rows, length, heads * head_dim], and the logarithm of each query's sum of exponentials."""
  rows, length, width = query.shape
  lse = jax.ShapeDtypeStruct((rows, width // settings.head_dim, 1, length), jnp.float32)
  arrays = _inputs(settings, part, query, key, value, bias, fixed)
  out = jax.ShapeDtypeStruct(query.shape, value.dtype)
  return tuple(_call("forward", settings, bias is not None, arrays, (out, lse)))


def backward(settings: Settings, part, query, key, value, bias, fixed, out, lse, given) -> tuple:
  """The gradients of query, key, value, bias and of what was added to query, key and value everywhere."""
  rows, length, width = query.shape
  heads = width // settings.head_dim
  inner = given.astype(jnp.float32) * out.astype(jnp.float32)
  inner = jnp.moveaxis(jnp.sum(jnp.reshape(inner, (rows, length, heads, -1)), axis=-1), 1, 2)
  arrays = (*_inputs(settings, part, query, key, value, bias, fixed), given, lse, inner)
  blocks = -(-length // BLOCK)
  like = jax.ShapeDtypeStruct(query.shape, query.dtype)
  diagonals = jax.ShapeDtypeStruct((rows, heads, blocks, blocks, 2 * BLOCK), jnp.float32)
  biased = bias is not None
  (d_query,) = _call("backward_query", settings, biased, arrays, (like,))
  d_key, d_value, diagonals = _call("backward_key", settings, biased, arrays, (like, like, diagonals))
  d_bias = None if bias is None else _by_distance(jnp.sum(diagonals, axis=0), length).astype(bias.dtype)
  gradients = d_query, d_key, d_value
  d_added = jnp.stack([jnp.sum(x.astype(jnp.float32), axis=(0, 1)) for x in gradients])
  return *gradients, d_bias, d_added


def _inputs(settings: Settings, part, query, key, value, bias, fixed: Fixed) -> tuple:
  """What all kernels read, in their order."""
  rows, length, width = query.shape
  heads = width // settings.head_dim
  segments = fixed.segment_ids
  end = jnp.full((rows,), length)
  if segments is None:
    segments = jnp.zeros((rows, length), jnp.int32)
    if settings.window is None:  # each query has keys, or none of the row has: then all average over all
      end = jnp.max(jnp.where(fixed.key_mask, jnp.arange(1, length + 1), 0), axis=1)
      end = jnp.where(end == 0, length, end)
  groups = jnp.stack([segments, jnp.where(fixed.key_mask, segments, _NO_GROUP)], axis=1)
  words = jnp.zeros((rows, 2), jnp.uint32) if fixed.words is None else fixed.words
  words = jax.lax.bitcast_convert_type(words, jnp.int32)
  first = jnp.full((rows, 1), part * heads)
  facts = jnp.concatenate([words, first, end[:, None]], axis=1).astype(jnp.int32)
  distances = jnp.zeros((1, 1)) if bias is None else bias
  return query, key, value, distances.astype(jnp.float32), groups, facts


def _call(
  kernel: str, settings: Settings, biased: bool, arrays: Sequence, results: Sequence
) -> Sequence[jax.Array]:
  """Runs a kernel over the blocks of tokens of each row and head."""
  rows, length, width = arrays[0].shape
  heads = width // settings.head_dim
  queries, keys = _BLOCKS[kernel]
  constants = {
    "length": length,
    "heads": heads,
    "head_dim": settings.head_dim,
    "lanes": max(16, 1 << (settings.head_dim - 1).bit_length()),
    "biased": biased,
    "window": -1 if settings.window is None else settings.window,
    "limit": int(row_random.pair_limit(settings.dropout_rate)),
    "keeps": 1.0 - settings.dropout_rate,
    "precision": "ieee" if arrays[0].dtype == jnp.float32 else "tf32",  # of no meaning for bfloat16
    "queries": queries,
    "keys": keys,
  }
  grid = (rows * heads * -(-length // (keys if kernel == "backward_key" else queries)),)

  @jax.custom_batching.sequential_vmap
  def launch(*arrays):
    return run(kernel, arrays, results, grid, constants)

  return launch(*arrays)


def run(
  kernel: str, arrays: Sequence, results: Sequence, grid: tuple[int], constants: dict
) -> Sequence[jax.Array]:
  """Launches a kernel of `attention_triton_kernels` on a grid of programs; results are 0 before it runs."""
  import jax_triton

  from pretrain.ops import attention_triton_kernels

  return jax_triton.triton_call(
    *arrays,
    kernel=getattr(attention_triton_kernels, kernel),
    out_shape=list(results),
    grid=grid,
    zeroed_outputs=(2,) if kernel == "backward_key" else (),
    num_warps=4 if constants["lanes"] <= 64 else 8,
    num_stages=STAGES,
    compute_capability=_planned_capability(),
    name=f"attention_{kernel}",
    **constants,
  )


def _planned_capability() -> int | None:
  """The compute capability that a program is compiled for without a GPU; None: that of the GPU here."""
  if jax.default_backend() == "gpu":
    return None
  device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
  return 90 if device is not None and re.search(r"\bH\d00\b", device.device_kind) else 80


def _by_distance(diagonals: jax.Array, length: int) -> jax.Array:
  """[heads, blocks of keys, blocks of queries, 2 BLOCK] to [heads, 2 length - 1]: sums over tiles."""
  heads, blocks = diagonals.shape[:2]
  apart = np.arange(blocks)[:, None] - np.arange(blocks)[None, :]
  is_apart = (np.arange(1 - blocks, blocks)[:, None, None] == apart).astype(np.float32)
  sums = jnp.einsum("hkqd,akq->had", diagonals, is_apart, precision=jax.lax.Precision.HIGHEST)
  # Tiles a block farther apart begin a block later: their first half lies on the second of those before.
  sums = jnp.pad(sums[..., :BLOCK], ((0, 0), (0, 1), (0, 0))) + jnp.pad(
    sums[..., BLOCK:], ((0, 0), (1, 0), (0, 0))
  )
  first = blocks * BLOCK - length
  return jnp.reshape(sums, (heads, -1))[:, first : first + 2 * length - 1]
