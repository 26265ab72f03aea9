"""The program of one device: the loss of its own rows, weights gathered for use, one sum per step.

Inside `on_own_rows` (`jax.shard_map` over `data` and `fsdp`) an array is one device's part, and devices
exchange only what is written here:
  * weights that are sharded over `fsdp`: a layer's kernels in the loop over layers, the rest once a step;
  * weights that are sharded over `data` (`sharding.update_axes`), once a step;
  * gradients, losses and metrics, summed once a step; a layer's kernels over `fsdp` in its loop;
  * rows of contrast groups that are on several devices.
The `tensor` axis is left to the partitioner; `sharding.constrain` gives it the sharding of activations.
Without a mesh, or with one device, all functions return their arguments.
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
Returns = Literal["values", "gradients"]  # sums of values, or sums and gradients sharded like the parameters
Shared = Mapping[str, int]  # {path of a parameter: its axis sharded over `data`}, from `sharding.update_axes`


class Weight(NamedTuple):
  """A float32 weight and its cast to the dtype of matrix products, which is made once per step."""

  master: jax.Array  # gets the gradient, float32
  cast: jax.Array  # read by products; no gradient


class Groups(NamedTuple):
  """All rows of the contrast groups that a device's own rows belong to, and where its own rows are."""

  rows: ArrayTree  # every leaf [rows, ...], whole groups
  size: int  # rows of a group
  first: jax.Array | int  # index of the device's first own row among them
  copies: int  # number of devices with the same rows


def on_own_rows(
  function: Callable, params: ArrayTree, *, row_axis: int, returns: Returns, shared: Shared | None = None
) -> Callable:
  """Returns `function(params, rows, totals)` as a program in which every device computes its own rows.

  Call the result with `params` like those given here, `rows` with the global batch on axis `row_axis`, and
  `totals`, which are replicated. `function` must sum its results with `total` and `total_gradients`.
  Parameters and their gradients are sharded along `shared` axes over `data`; anything else sharded over
  `data` is gathered first.
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
  """Returns {axis: devices} of `data` and `fsdp` inside `on_own_rows`, except axes of one device; else {}."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES:
    return {}
  return {a: mesh.shape[a] for a in BATCH_AXES if a in mesh.manual_axes and mesh.shape[a] > 1}


def _cut_axis(path: str, ndim: int) -> int | None:
  """Returns the axis of a parameter that is sharded over `fsdp` here; None if it is whole."""
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
  """Gathers, once a step, all parameters that are not in a stack of layers."""

  def whole(path: str, leaf: jax.Array) -> jax.Array:
    axis = None if _is_stacked(path) else _cut_axis(path, leaf.ndim)
    return leaf if axis is None else _gather(leaf, axis)

  return jax.tree.map(whole, trees.paths(params), params)


def casts(params: ArrayTree, dtype: jnp.dtype) -> dict[str, jax.Array]:
  """Casts the layers' stacked kernels to `dtype`: {path: cast}, without those that have it already."""
  stacked = {path: leaf for path, leaf in trees.by_path(params).items() if _is_stacked(path)}
  return {
    path: leaf.astype(dtype)
    for path, leaf in stacked.items()
    if path.endswith("/kernel") and leaf.dtype != dtype
  }


def whole_over_data(
  params: ArrayTree, casts: dict[str, jax.Array], shared: Shared
) -> tuple[ArrayTree, dict[str, jax.Array]]:
  """Gathers the `shared` axes of parameters and `casts`, once a step and each in one dtype.

  For a parameter with a cast, only the cast is gathered. The parameter itself gets the gradient but is not
  read, so it becomes zeros, which the compiler removes.
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
  """Replaces parameters that have a cast by a `Weight`; `layer_weights` turns it into an array again."""
  pairs = {
    path: Weight(leaf, casts[path]) if path in casts else leaf for path, leaf in trees.by_path(params).items()
  }
  return jax.tree.unflatten(jax.tree.structure(params), list(pairs.values()))


def layer_weights(params: ArrayTree) -> ArrayTree:
  """Returns the weights of one layer, gathered from its slice of the stack; casts of `with_casts` are used.

  The gradient of a weight is float32, for every compute dtype, and summed over `fsdp`.
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
  """Sums a tree of [] float arrays over all devices, in one exchange."""
  axes = tuple(_sizes())
  if not axes:
    return values
  flat, unravel = ravel_pytree(values)
  return unravel(jax.lax.psum(flat, axes))


def total_gradients(grads: ArrayTree, *, shared: Shared) -> ArrayTree:
  """Sums gradients of the parameters from `outside_layers` over all devices, sharded like `params`.

  Gradients of stacked weights are already summed over `fsdp`.
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
  """Returns the rows of all groups of `group_size` consecutive rows that contain the device's own rows.

  A `group_size` of 0 means all rows. A device with whole groups needs no other rows. Otherwise the devices of
  a group exchange theirs; if a group ends in the middle of a device's rows, all devices do.
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
