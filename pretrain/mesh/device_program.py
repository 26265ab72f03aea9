"""The program of one device: the loss of its own rows, weights gathered where they are read, one sum a step.

Inside `on_own_rows` (`jax.shard_map` over `data` and `fsdp`) an array is the part of one device, and devices
exchange what is written here and nothing else:
  * weights that are cut over `fsdp`: the kernels of a layer in the loop over layers, the rest once a step;
  * weights that are cut over `data` (`sharding.update_axes`), once a step;
  * gradients, losses and metrics, which are summed once a step; a layer's kernels over `fsdp` in its loop;
  * rows of contrast groups that lie on several devices.
The `tensor` axis is left to the partitioner; `sharding.constrain` tells it where activations lie. Without a
mesh, or with one device, all functions return what they are given.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from pretrain.mesh import trees
from pretrain.mesh.sharding import BATCH_AXES, MESH_AXES, partition_spec

ArrayTree = Any
Returns = Literal["values", "gradients"]  # sums of values, or these and gradients, cut like the parameters
Shared = Mapping[
  str, int
]  # {path of a parameter: the axis that is cut over `data`}, of `sharding.update_axes`


class Weight(NamedTuple):
  """A float32 weight that is multiplied in another dtype, into which it was cast once for the whole step."""

  master: jax.Array  # gets the gradient, float32
  cast: jax.Array  # what products read; no gradient


class Groups(NamedTuple):
  """Rows with which a device's own rows are contrasted."""

  rows: ArrayTree  # every leaf [rows, ...], whole groups
  size: int  # rows of a group
  first: jax.Array | int  # number of the device's first own row among them
  copies: int  # devices that hold the same rows


def on_own_rows(
  function: Callable, params: ArrayTree, *, row_axis: int, returns: Returns, shared: Shared | None = None
) -> Callable:
  """`function(params, rows, totals)` as what every device computes with its own part of the rows.

  The result is called with `params` like those given here, with `rows` that have the rows of the global batch
  on their axis `row_axis`, and with `totals`, which are whole on every device. What the function `returns` it
  has summed by `total` and `total_gradients`. Parameters come as their `shared` axes are cut, and their
  gradients leave so; what else is cut over `data` is made whole before the function.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES or math.prod(mesh.shape[axis] for axis in BATCH_AXES) == 1:
    return function
  own, whole = PartitionSpec(*[None] * row_axis, BATCH_AXES), PartitionSpec()
  cuts = jax.tree.map(functools.partial(_cut, shared=shared or {}), trees.paths(params), params)
  return jax.shard_map(
    function,
    in_specs=(cuts, own, whole),
    out_specs=whole if returns == "values" else (whole, cuts),
    axis_names=set(MESH_AXES if mesh.shape["tensor"] == 1 else BATCH_AXES),
    check_vma=False,
  )


def _cut(path: str, leaf: jax.Array, *, shared: Shared) -> PartitionSpec:
  names = [axis if axis == "fsdp" else None for axis in partition_spec(path, leaf.ndim)]
  if path in shared:
    names[shared[path]] = "data"
  return PartitionSpec(*names)


def _sizes() -> dict[str, int]:
  """{axis: devices} of `data` and `fsdp` inside `on_own_rows`, those of one device left out; else {}."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES:
    return {}
  return {a: mesh.shape[a] for a in BATCH_AXES if a in mesh.manual_axes and mesh.shape[a] > 1}


def _cut_axis(path: str, ndim: int) -> int | None:
  """Which axis of a parameter is cut over `fsdp` here; None: it is whole."""
  if "fsdp" not in _sizes():
    return None
  spec = tuple(partition_spec(path, ndim))
  return spec.index("fsdp") if "fsdp" in spec else None


def _is_stacked(path: str) -> bool:
  return "layers" in path.split("/")


def _gather(part: jax.Array, axis: int, over: str = "fsdp") -> jax.Array:
  return jax.lax.all_gather(part, over, axis=axis, tiled=True)


def _scatter_sum(whole: jax.Array, over: str, axis: int) -> jax.Array:
  return jax.lax.psum_scatter(whole, over, scatter_dimension=axis, tiled=True)


def outside_layers(params: ArrayTree) -> ArrayTree:
  """The parameters with all that is not in a stack of layers whole: gathered once a step, not per use."""

  def whole(path: str, leaf: jax.Array) -> jax.Array:
    axis = None if _is_stacked(path) else _cut_axis(path, leaf.ndim)
    return leaf if axis is None else _gather(leaf, axis)

  return jax.tree.map(whole, trees.paths(params), params)


def casts(params: ArrayTree, dtype: jnp.dtype) -> dict[str, jax.Array]:
  """{path: the kernel in `dtype`} of all stacked kernels whose own dtype is another."""
  stacked = {path: leaf for path, leaf in trees.by_path(params).items() if _is_stacked(path)}
  return {
    path: leaf.astype(dtype)
    for path, leaf in stacked.items()
    if path.endswith("/kernel") and leaf.dtype != dtype
  }


def whole_over_data(
  params: ArrayTree, casts: dict[str, jax.Array], shared: Shared
) -> tuple[ArrayTree, dict[str, jax.Array]]:
  """Parameters and `casts` with their `shared` axes whole: gathered once a step, each in one dtype.

  Of a parameter with a cast only that is gathered. The parameter itself, which gets the gradient and is not
  read, becomes zeros, which the compiler leaves out.
  """
  if not shared:
    return params, casts
  leaves, casts = trees.by_path(params), dict(casts)
  for path, axis in shared.items():
    if path in casts:
      casts[path] = _gather(casts[path], axis, "data")
      leaves[path] = jnp.zeros(casts[path].shape, leaves[path].dtype)
    else:
      leaves[path] = _gather(leaves[path], axis, "data")
  return jax.tree.unflatten(jax.tree.structure(params), list(leaves.values())), casts


def with_casts(params: ArrayTree, casts: dict[str, jax.Array]) -> ArrayTree:
  """The parameters with a `Weight` where there is a cast; `layer_weights` makes arrays of them again."""
  pairs = {
    path: Weight(leaf, casts[path]) if path in casts else leaf for path, leaf in trees.by_path(params).items()
  }
  return jax.tree.unflatten(jax.tree.structure(params), list(pairs.values()))


def layer_weights(params: ArrayTree) -> ArrayTree:
  """What one layer reads of its slice of the stack: whole weights, cast ones where `with_casts` has them.

  The gradient of a weight leaves its layer in float32, whatever dtype it was read in, summed over `fsdp`.
  """
  leaves, structure = jax.tree.flatten(params, is_leaf=lambda leaf: isinstance(leaf, Weight))
  firsts = [leaf.master if isinstance(leaf, Weight) else leaf for leaf in leaves]
  names = trees.by_path(jax.tree.unflatten(structure, firsts))
  read = []
  for (path, first), leaf in zip(names.items(), leaves):
    axis = _cut_axis(path, first.ndim)
    if isinstance(leaf, Weight):
      leaf = _read_cast(leaf.master, leaf.cast, axis)
    elif axis is not None:
      leaf = _gather(leaf, axis)
    read.append(leaf)
  return jax.tree.unflatten(structure, read)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _read_cast(master: jax.Array, cast: jax.Array, axis: int | None) -> jax.Array:
  del master
  return cast if axis is None else _gather(cast, axis)


def _read_cast_forward(master: jax.Array, cast: jax.Array, axis: int | None):
  return _read_cast(master, cast, axis), None


def _read_cast_backward(axis: int | None, _, cotangent: jax.Array):
  cotangent = cotangent.astype(jnp.float32)
  return cotangent if axis is None else _scatter_sum(cotangent, "fsdp", axis), None


_read_cast.defvjp(_read_cast_forward, _read_cast_backward)


def total(values: ArrayTree) -> ArrayTree:
  """Sums over all devices of a tree of [] float arrays, in one exchange."""
  axes = tuple(_sizes())
  if not axes:
    return values
  flat, unravel = ravel_pytree(values)
  return unravel(jax.lax.psum(flat, axes))


def total_gradients(grads: ArrayTree, *, shared: Shared) -> ArrayTree:
  """Gradients of the parameters as `outside_layers` has them, summed over all devices and cut like `params`.

  Those of stacked weights are sums over `fsdp` already.
  """
  sizes = _sizes()

  def total_of(path: str, grad: jax.Array) -> jax.Array:
    cut = _cut_axis(path, grad.ndim)
    left = [name for name in sizes if name != "fsdp" or cut is None]
    if cut is not None and not _is_stacked(path):
      grad = _scatter_sum(grad, "fsdp", cut)
    if path in shared:
      grad = _scatter_sum(grad, "data", shared[path])
      left.remove("data")
    return jax.lax.psum(grad, tuple(left)) if left else grad

  return jax.tree.map(total_of, trees.paths(grads), grads) if sizes else grads


def whole_groups(rows: ArrayTree, group_size: int) -> Groups:
  """The rows of all groups of `group_size` (0: all rows) consecutive rows to which the device's own belong.

  A device that holds whole groups needs no others' rows. Else the devices of a group exchange theirs; where
  a group ends in the middle of a device's rows, all devices do.
  """
  number, sizes = jax.tree.leaves(rows)[0].shape[0], _sizes()
  devices, axes = math.prod(sizes.values()), tuple(sizes)
  size = group_size or number * devices
  if number % size == 0:
    return Groups(rows, size, 0, 1)
  copies = devices if size % number else size // number
  neighbours = [list(range(start, start + copies)) for start in range(0, devices, copies)]
  gather = functools.partial(jax.lax.all_gather, axis_name=axes, axis_index_groups=neighbours, tiled=True)
  place = jax.lax.axis_index(axes) % copies
  return Groups(jax.tree.map(gather, rows), size, place * number, copies)
