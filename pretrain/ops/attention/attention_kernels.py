"""Attention by TPU or GPU kernels as one differentiable function, also on a mesh."""

import functools
import math
import types
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pretrain.mesh.sharding import BATCH_AXES, HEAD_AXIS, MESH_AXES, automatic_axes
from pretrain.ops import row_random
from pretrain.ops.attention import attention_tpu, attention_triton
from pretrain.ops.attention.attention_inputs import Fixed, Settings
from pretrain.ops.kept import keep

_WIDE = PartitionSpec(BATCH_AXES, None, HEAD_AXIS)
_LSE = PartitionSpec(BATCH_AXES, HEAD_AXIS, None, None)
_ROWS = PartitionSpec(BATCH_AXES)
_HEADS = PartitionSpec(HEAD_AXIS)
_COLUMNS = PartitionSpec(None, HEAD_AXIS)
# Sharding of the arrays that a forward pass saves for the backward pass, besides its result.
_LEFT = {
  "pallas_tpu": (_LSE,),
  "triton": (_LSE, _HEADS, _ROWS, _ROWS, PartitionSpec(BATCH_AXES, HEAD_AXIS), PartitionSpec()),
}


def attention(
  query: jax.Array,
  key: jax.Array | None,
  value: jax.Array | None,
  *,
  bias: jax.Array | None,
  key_mask: jax.Array,
  segment_ids: jax.Array | None,
  row_keys: jax.Array | None,
  turns: jax.Array | None,
  added: jax.Array | None,
  settings: Settings,
) -> jax.Array:
  """Computes `ops.attention.attention` with a bias by distance, [heads, 2 length - 1], or None.

  Without `key` and `value`, `query` is [batch, length, 3, heads, head_dim] and has all three. Only
  kernels that `attention.rotates` or `attention.reads_packed` names support this.
  """
  # [batch, length, heads * head_dim] throughout, because TPUs pad a short last axis.
  wide, heads = (*query.shape[:2], -1), query.shape[-2:]
  words = None
  if row_keys is not None:
    words = row_random.key_words(row_random.fold(row_keys, row_random.Use.ATTENTION_DROPOUT))
  if turns is not None:
    turns = jnp.broadcast_to(turns, (len(query), *turns.shape[1:]))
  fixed = Fixed(key_mask, segment_ids, words, turns)
  added = jnp.zeros((3, math.prod(heads))) if added is None else jnp.reshape(added, (3, -1))
  query, key, value = jax.tree.map(lambda x: jnp.reshape(x, wide), (query, key, value))
  attended = _attend(settings, query, key, value, bias, added, fixed)
  return jnp.reshape(attended, (*wide[:2], *heads))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings: Settings, query, key, value, bias, added, fixed: Fixed) -> jax.Array:
  return _attend_forward(settings, query, key, value, bias, added, fixed)[0]


def _attend_forward(settings: Settings, query, key, value, bias, added, fixed: Fixed):
  def on_device(part, *arrays):
    return _of(settings).forward(settings, part, *arrays)

  arrays = (query, key, value, bias, fixed)
  specs = (_WIDE, _WIDE, _WIDE, _HEADS, _ROWS), (_WIDE, *_LEFT[settings.kernels])
  out, *left = _on_devices(on_device, *specs)(*arrays)
  del added  # in query, key and value already
  return out, (*arrays, keep(out), *(keep(each) for each in left))


def _attend_backward(settings: Settings, kept: tuple, given: jax.Array):
  rows = tuple(axis for axis in BATCH_AXES if axis in automatic_axes())

  def on_device(part, *arrays):
    *gradients, d_bias, d_added = _of(settings).backward(settings, part, *arrays)
    return *gradients, *(jax.lax.psum((d_bias, d_added), rows) if rows else (d_bias, d_added))

  specs = (_WIDE, _WIDE, _WIDE, _HEADS, _ROWS, _WIDE, *_LEFT[settings.kernels], _WIDE)
  gradients = _on_devices(on_device, specs, (_WIDE, _WIDE, _WIDE, _HEADS, _COLUMNS))(*kept, given)
  return (*gradients, None)


_attend.defvjp(_attend_forward, _attend_backward)


def _of(settings: Settings) -> types.ModuleType:
  """Returns the module with the platform's `forward` and `backward`."""
  return {"pallas_tpu": attention_tpu, "triton": attention_triton}[settings.kernels]


def _on_devices(function: Callable, in_specs: Sequence, out_specs: Sequence) -> Callable:
  """Maps `function(part, *arrays)` over devices, each with its rows and its part of the heads.

  Without a mesh it is called with everything, as part 0. The partitioner cannot shard a kernel, so rows and
  heads are distributed here.
  """
  if not automatic_axes():
    return functools.partial(function, jnp.int32(0))
  mesh = jax.sharding.get_abstract_mesh()
  # In a training step rows are already the device's own, so only heads are distributed here.
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
  """Explains why the current mesh cannot distribute rows and heads to kernels; '' if it can."""
  axes = automatic_axes()
  if not axes.keys() <= set(MESH_AXES):
    return f"the mesh has the axes {', '.join(axes)}; expected {', '.join(MESH_AXES)}"
  parts = math.prod(axes.get(axis, 1) for axis in BATCH_AXES), axes.get(HEAD_AXIS, 1)
  if rows % parts[0] or heads % parts[1]:
    return f"{rows} rows and {heads} heads are not divisible by {parts[0]} and {parts[1]} devices"
  return ""
