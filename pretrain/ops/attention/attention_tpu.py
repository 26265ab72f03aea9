"""Attention on TPUs: prepares one device's arrays for the kernels in `attention_tile`."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.ops.attention import attention_call, attention_long
from pretrain.ops.attention.attention_inputs import Fixed, Settings
from pretrain.ops.attention.attention_sizes import SUBLANES, Sizes
from pretrain.ops.attention.attention_tile import MASKED
from pretrain.ops.draws import row_random

LONGEST = 1_024  # tokens: a longer row's bias [heads of a group, length, length], with gradient, exceeds VMEM


def _is_long(settings: Settings, query: jax.Array, bias: jax.Array | None, fixed: Fixed) -> bool:
  """Returns whether the kernels for long rows compute it: they skip what windows and segments hide."""
  is_masked = settings.window is not None or fixed.segment_ids is not None
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
    return attention_long.forward(settings, query, key, value, fixed)
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, part, query, *arrays)
  results = attention_call.call(sizes, "forward", inputs, interpret=settings.interpret)
  return results["out"], results["lse"]


def backward(settings: Settings, part, query, key, value, bias, fixed, out, lse, given) -> tuple:
  """Returns gradients of query, key, value, bias, and of biases added to query, key and value."""
  if _is_long(settings, query, bias, fixed):
    return attention_long.backward(settings, query, key, value, fixed, out, lse, given)
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, part, query, key, value, bias, fixed)
  inputs |= {"out": out, "given": given, "lse": lse}
  results = attention_call.call(sizes, "backward", inputs, interpret=settings.interpret)
  d_bias = None
  if bias is not None:
    copies = jnp.reshape(results["distances"], (sizes.heads, SUBLANES, -1))
    copy = np.arange(SUBLANES)[:, None]
    d_bias = jnp.sum(copies[:, copy, _places(sizes)], axis=1).astype(bias.dtype)
  d_added = jnp.reshape(jnp.moveaxis(results["biases"], 0, 1), (3, -1))
  return results["query"], results["key"], results["value"], d_bias, d_added
