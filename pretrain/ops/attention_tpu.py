"""Attention on TPUs: the kernels of `attention_tile` as one differentiable function, also on a mesh."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.ops import attention_call, row_random
from pretrain.ops.attention_tile import MASKED, SUBLANES, Sizes
from pretrain.ops.kept import keep
from pretrain.sharding import BATCH_AXES, HEAD_AXIS, MESH_AXES, automatic_axes

LONGEST = 1_024  # tokens of a row whose bias, [heads of a group, length, length] and its gradient, fit VMEM
_WIDE = PartitionSpec(BATCH_AXES, None, HEAD_AXIS)
_LSE = PartitionSpec(BATCH_AXES, HEAD_AXIS, None, None)
_ROWS = PartitionSpec(BATCH_AXES)
_HEADS = PartitionSpec(HEAD_AXIS)
_COLUMNS = PartitionSpec(None, HEAD_AXIS)


class Settings(NamedTuple):
  """What does not change from call to call of a program."""

  head_dim: int
  dropout_rate: float
  window: int | None
  interpret: bool


class _Fixed(NamedTuple):
  """Arrays without a gradient."""

  key_mask: jax.Array  # [batch, length] bool
  segment_ids: jax.Array | None  # [batch, length] int32
  words: jax.Array | None  # [batch, 2] uint32


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  segment_ids: jax.Array | None,
  row_keys: jax.Array | None,
  added: jax.Array | None,
  settings: Settings,
) -> jax.Array:
  """`ops.attention.attention` with a bias by distance, [heads, 2 length - 1], or None."""
  # [batch, length, heads * head_dim] throughout: on a TPU an array with a short last axis is a padded one.
  wide = (*query.shape[:2], -1)
  words = None
  if row_keys is not None:
    words = row_random.key_words(row_random.fold(row_keys, row_random.Use.ATTENTION_DROPOUT))
  fixed = _Fixed(key_mask, segment_ids, words)
  added = jnp.zeros((3, math.prod(query.shape[2:]))) if added is None else jnp.reshape(added, (3, -1))
  attended = _attend(settings, *(jnp.reshape(x, wide) for x in (query, key, value)), bias, added, fixed)
  return jnp.reshape(attended, query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings: Settings, query, key, value, bias, added, fixed: _Fixed) -> jax.Array:
  return _attend_forward(settings, query, key, value, bias, added, fixed)[0]


def _attend_forward(settings: Settings, query, key, value, bias, added, fixed: _Fixed):
  def on_device(part, *arrays):
    return _forward(settings, part, *arrays)

  arrays = (query, key, value, bias, fixed)
  out, lse = _on_devices(on_device, (_WIDE, _WIDE, _WIDE, _HEADS, _ROWS), (_WIDE, _LSE))(*arrays)
  del added  # in query, key and value already
  return out, (*arrays, keep(out), keep(lse))


def _attend_backward(settings: Settings, kept: tuple, given: jax.Array):
  rows = tuple(axis for axis in BATCH_AXES if axis in automatic_axes())

  def on_device(part, *arrays):
    *gradients, d_bias, d_added = _backward(settings, part, *arrays)
    return *gradients, *(jax.lax.psum((d_bias, d_added), rows) if rows else (d_bias, d_added))

  specs = (_WIDE, _WIDE, _WIDE, _HEADS, _ROWS, _WIDE, _LSE, _WIDE)
  gradients = _on_devices(on_device, specs, (_WIDE, _WIDE, _WIDE, _HEADS, _COLUMNS))(*kept, given)
  return (*gradients, None)


_attend.defvjp(_attend_forward, _attend_backward)


def _on_devices(function: Callable, in_specs: Sequence, out_specs: Sequence) -> Callable:
  """`function(part, *arrays)` on every device's rows and part of the heads; without a mesh on all, as part 0.

  A kernel is opaque to the partitioner, so it is given its rows and heads by hand.
  """
  if not automatic_axes():
    return functools.partial(function, jnp.int32(0))
  mesh = jax.sharding.get_abstract_mesh()
  # In a training step the rows are the device's own already, and only the heads are left to be shared out.
  left = set(mesh.axis_names) - set(mesh.manual_axes)

  def spec_of(spec: PartitionSpec) -> PartitionSpec:
    parts = [part if isinstance(part, tuple) else (part,) for part in spec]
    return PartitionSpec(*(tuple(name for name in part if name in left) or None for part in parts))

  def on_device(*arrays):
    return function(jax.lax.axis_index(HEAD_AXIS), *arrays)

  specs = jax.tree.map(spec_of, (tuple(in_specs), tuple(out_specs)), is_leaf=_is_spec)
  return jax.shard_map(on_device, in_specs=specs[0], out_specs=specs[1], axis_names=left, check_vma=False)


def _is_spec(leaf) -> bool:
  return isinstance(leaf, PartitionSpec)


def not_on_mesh(rows: int, heads: int) -> str:
  """Why the mesh in use cannot share rows and heads out among kernels, or ''."""
  axes = automatic_axes()
  if not axes.keys() <= set(MESH_AXES):
    return f"a mesh with the axes {', '.join(axes)}, not {', '.join(MESH_AXES)}"
  parts = math.prod(axes.get(axis, 1) for axis in BATCH_AXES), axes.get(HEAD_AXIS, 1)
  if rows % parts[0] or heads % parts[1]:
    return f"{rows} rows and {heads} heads are not divisible by {parts[0]} and {parts[1]} devices"
  return ""


def _sizes(settings: Settings, query: jax.Array) -> Sizes:
  rows, length, width = query.shape
  heads = width // settings.head_dim
  return Sizes(rows, length, heads, settings.head_dim, settings.dropout_rate, settings.window)


def _inputs(sizes: Sizes, part, query, key, value, bias, fixed: _Fixed) -> dict:
  """The kernels' arrays, padded, of one device."""
  more = sizes.padded - sizes.length
  key_bias = jnp.where(fixed.key_mask, 0.0, MASKED)[:, None, :].astype(jnp.float32)
  segments = fixed.segment_ids
  words = jnp.zeros((sizes.rows, 2), jnp.uint32) if fixed.words is None else fixed.words
  return {
    "words": words,
    "first_head": jnp.reshape(part * sizes.heads, (1, 1)).astype(jnp.int32),
    "distances": None if bias is None else _moved_copies(sizes, bias.astype(jnp.float32)),
    "key_bias": jnp.pad(key_bias, ((0, 0), (0, 0), (0, more)), constant_values=-np.inf),
    "segments": None if segments is None else jnp.pad(segments, ((0, 0), (0, more)))[:, None, :],
    "query": _padded(sizes, query),
    "key": _padded(sizes, key),
    "value": _padded(sizes, value),
  }


def _padded(sizes: Sizes, x: jax.Array) -> jax.Array:
  """[rows, length, ...] to [rows, padded, ...]."""
  return jnp.pad(x, ((0, 0), (0, sizes.padded - sizes.length), (0, 0)))


def _cut(sizes: Sizes, x: jax.Array) -> jax.Array:
  return x[:, : sizes.length]


def _places(sizes: Sizes) -> np.ndarray:
  """Where distance d (key - query + length - 1) lies in each of the 8 copies: [8, 2 length - 1] int.

  In the copy of key k (modulo 8) query q reads column q, so distance k - q lies at k minus the distance.
  """
  wide = 2 * sizes.padded
  distances = np.arange(2 * sizes.length - 1) - (sizes.length - 1)
  return (np.arange(SUBLANES)[:, None] - distances[None, :]) % wide


def _moved_copies(sizes: Sizes, bias: jax.Array) -> jax.Array:
  """[heads, 2 length - 1] to [groups, group, 8, 2 padded]: the bias of keys 0 to 7 for every query."""
  wide = 2 * sizes.padded
  source = np.full((SUBLANES, wide), 2 * sizes.length - 1)  # the 0 put behind the last distance
  np.put_along_axis(source, _places(sizes), np.arange(2 * sizes.length - 1)[None, :], axis=1)
  copies = jnp.pad(bias, ((0, 0), (0, 1)))[:, source]
  return jnp.reshape(copies, (sizes.groups, sizes.group, SUBLANES, wide))


def _forward(settings: Settings, part, query, *arrays) -> tuple[jax.Array, jax.Array]:
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, part, query, *arrays)
  results = attention_call.call(sizes, "forward", inputs, interpret=settings.interpret)
  return _cut(sizes, results["out"]), results["lse"]


def _backward(settings: Settings, part, query, key, value, bias, fixed, out, lse, given) -> tuple:
  sizes = _sizes(settings, query)
  inputs = _inputs(sizes, part, query, key, value, bias, fixed)
  inputs |= {"out": _padded(sizes, out), "given": _padded(sizes, given), "lse": lse}
  results = attention_call.call(sizes, "backward", inputs, interpret=settings.interpret)
  d_bias = None
  if bias is not None:
    copies = jnp.reshape(results["distances"], (sizes.heads, SUBLANES, -1))
    copy = np.arange(SUBLANES)[:, None]
    d_bias = jnp.sum(copies[:, copy, _places(sizes)], axis=1).astype(bias.dtype)
  d_added = jnp.reshape(jnp.moveaxis(results["biases"], 0, 1), (3, -1))
  return (*(_cut(sizes, results[name]) for name in ("query", "key", "value")), d_bias, d_added)
