"""Meshes, where every parameter lies on them, and batches that span hosts.

One table maps a parameter's path to the names of its axes, another the names to axes of the mesh. Flax's
boxes and logical-axis rules are not used: the path says all.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from data.errors import ConfigError
from pretrain.mesh import device_order, trees
from pretrain.settings.mesh import MeshSettings

ArrayTree = Any

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
HEAD_AXIS = "tensor"

# The end of a parameter's path -> its axes. Everything under `layers` is stacked: one axis more in front.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
  (r"token/embedding", ("vocab", "embed")),
  (r"(position|segment)/embedding", (None, "embed")),
  (r"relative_position/embedding", (None, "heads")),
  (r"attention/(query|key|value)/kernel", ("embed", "heads", None)),
  (r"attention/(query|key|value)/bias", ("heads", None)),
  (r"attention/output/kernel", ("heads", None, "embed")),
  (r"attention/output/bias", (None,)),
  (r"up/kernel", ("embed", "mlp")),
  (r"up/bias", ("mlp",)),
  (r"down/kernel", ("mlp", "embed")),
  (r"down/bias", (None,)),
  # LayerNorms: a few thousand numbers, whole on every device.
  (r"(norm|attention_norm|mlp_norm)/(scale|bias)", (None,)),
  (r"(dense|projection)/kernel", ("embed", None)),
  (r"(dense|projection)/bias", (None,)),
  (r"(mixture|rtd)/kernel", ("embed", None)),
  (r"rtd/bias", (None,)),
  (r"(mlm_head(_\d+)?|mlm|clm)/bias", ("vocab",)),
)

PARAMETER_AXES = {"vocab": "tensor", "embed": "fsdp", "heads": "tensor", "mlp": "tensor"}
# Activations are cut along the batch; their width only where a tensor-parallel product leaves it cut.
ACTIVATION_AXES = {
  "batch": BATCH_AXES,
  "length": None,
  "embed": None,
  "heads": "tensor",
  "head_dim": None,
  "mlp": "tensor",
  "vocab": "tensor",
  "layers": None,
}
# The corpus decides the number of rows (30,522 on tensor=4), so a table that cannot be cut stays whole.
# All other sizes are choices, and one that does not fit the mesh is refused.
MAY_STAY_WHOLE = ("vocab",)


def make_mesh(settings: MeshSettings, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Arranges devices (None: all of all hosts) in a `data` x `fsdp` x `tensor` mesh.

  The product of the settings is the number of devices (`command.rules` refuses others). The axes are Auto:
  with JAX's default, Explicit, every gather would need a sharding. ConfigError: the devices cannot be laid
  out so.
  """
  devices = jax.devices() if devices is None else list(devices)
  arranged = device_order.arrange(settings, devices)
  return Mesh(arranged, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


@functools.cache
def _compiled_rules() -> list[tuple[re.Pattern, tuple[str | None, ...]]]:
  return [(re.compile(rf"(^|/){pattern}$"), axes) for pattern, axes in RULES]


def logical_axes(path: str, ndim: int) -> tuple[str | None, ...] | None:
  """The name, or None, of each of a parameter's `ndim` axes; None if no rule names the path with so many.

  Keys are joined by '/'; what stands before the parameter's own path (Adam's 'mu/') does not matter.
  """
  for pattern, axes in _compiled_rules():
    if pattern.search(path):
      stacked = (None,) if "layers" in path.split("/") else ()
      return stacked + axes if len(stacked + axes) == ndim else None
  return None


def partition_spec(path: str, ndim: int) -> PartitionSpec:
  """Where a parameter's axes lie on the mesh, whatever their sizes.

  Below 2 axes a path that no rule names is replicated (counters, for example).

  Raises:
    ConfigError: two or more axes, and no rule names them.
  """
  axes = logical_axes(path, ndim)
  if axes is None:
    if ndim >= 2:
      raise ConfigError(_unnamed([f"{path} ({ndim} axes)"]))
    return PartitionSpec()
  return PartitionSpec(*(axis and PARAMETER_AXES.get(axis) for axis in axes))


def _unnamed(parameters: list[str]) -> str:
  return f"no rule of sharding.RULES names {', '.join(parameters)}; add one"


def update_axis(path: str, shape: tuple[int, ...], mesh_sizes: Mapping[str, int]) -> int | None:
  """Which axis of a parameter is cut over `data` where the update is shared out (`optimizer.shard_update`).

  The first that nothing else cuts and that the devices along `data` divide. None: each device updates all of
  it, as it does with biases and LayerNorms, which are too small to be worth an exchange of their own.
  """
  parts = mesh_sizes["data"]
  if parts == 1 or path.split("/")[-1] not in ("kernel", "embedding"):
    return None
  cuts = partition_spec(path, len(shape))
  free = [axis for axis, name in enumerate(cuts) if name is None or mesh_sizes[name] == 1]
  return next((axis for axis in free if shape[axis] % parts == 0), None)


def update_axes(params: ArrayTree) -> dict[str, int]:
  """{path: `update_axis`} of the parameters that have one on the mesh in use (`jax.set_mesh`)."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES:
    return {}
  axes = {path: update_axis(path, leaf.shape, mesh.shape) for path, leaf in trees.by_path(params).items()}
  return {path: axis for path, axis in axes.items() if axis is not None}


def shardings(mesh: Mesh, abstract_tree: ArrayTree, *, over_data: bool = False) -> ArrayTree:
  """The NamedSharding of every leaf of parameters, optimizer state, or both, in the same tree.

  The leaves are arrays or ShapeDtypeStructs; a path must end as the parameter's does. A vocabulary that the
  tensor axis does not divide stays whole; that the mesh divides the other sizes is a rule of `command.rules`.
  With `over_data` each leaf is cut along its `update_axis` too.

  Raises:
    ConfigError: leaves of two or more axes that no rule names (all are listed).
  """
  leaves = trees.by_path(abstract_tree)
  unnamed = [
    f"{path} {leaf.shape}"
    for path, leaf in leaves.items()
    if leaf.ndim >= 2 and logical_axes(path, leaf.ndim) is None
  ]
  if unnamed:
    raise ConfigError(_unnamed(unnamed))
  specs = [_fitting_spec(mesh, path, leaf.shape, over_data) for path, leaf in leaves.items()]
  return jax.tree.unflatten(jax.tree.structure(abstract_tree), [NamedSharding(mesh, spec) for spec in specs])


def _fitting_spec(mesh: Mesh, path: str, shape: tuple[int, ...], over_data: bool) -> PartitionSpec:
  names = logical_axes(path, len(shape)) or ()
  spec = []
  for name, size, axis in zip(names, shape, partition_spec(path, len(shape))):
    fits = axis is None or size % mesh.shape[axis] == 0
    assert fits or name in MAY_STAY_WHOLE, (path, shape, mesh.shape)
    spec.append(axis if fits else None)
  shared = update_axis(path, shape, mesh.shape) if over_data else None
  if shared is not None:
    spec[shared] = "data"
  return PartitionSpec(*spec)


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of what is whole on every device: metrics, counters."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """The sharding of [batch, ...]: rows over `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def local_rows(mesh: Mesh, rows: int) -> list[int]:
  """The rows of the global batch that this process must supply to `to_global`, wherever they are, in order.

  `rows` of the global batch are a multiple of the devices along `data` and `fsdp`.
  """
  return device_order.rows_of(mesh.devices, rows, jax.process_index())


def to_global(mesh: Mesh, local: ArrayTree) -> ArrayTree:
  """jax arrays [batch, ...] with `batch_sharding` of each process's numpy arrays: its `local_rows`."""
  held = device_order.parts_of(mesh.devices, jax.process_index())
  whole, parts = batch_sharding(mesh), mesh.devices[..., 0].size

  def place(own: np.ndarray) -> jax.Array:
    own = np.asarray(own)
    each = len(own) // len(held)

    def of_device(index: Any) -> np.ndarray:
      first = held.index((index[0].start or 0) // each) * each
      return own[first : first + each]

    return jax.make_array_from_callback((each * parts, *own.shape[1:]), whole, of_device)

  return jax.tree.map(place, local)


def automatic_axes() -> dict[str, int]:
  """{axis: devices} of the mesh in use that are left to the partitioner, those of one device left out."""
  mesh = jax.sharding.get_abstract_mesh()
  left = [name for name in mesh.axis_names if name not in mesh.manual_axes]
  return {name: mesh.shape[name] for name in left if mesh.shape[name] > 1}


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Lays the axes of an activation, names out of ACTIVATION_AXES or None, on the mesh of `make_mesh`.

  Without a mesh (`jax.set_mesh`), or on the runs of fine-tuning's own mesh, returns `x` as it is. Inside
  `own_rows.on_own_rows` the batch is that of one device, and only `tensor` is left to constrain.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES or set(mesh.manual_axes) == set(MESH_AXES):
    return x
  names = [ACTIVATION_AXES[axis] if axis else None for axis in axes]
  if mesh.manual_axes:  # the rows are those of one device already
    names = [None if name == BATCH_AXES else name for name in names]
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*names))
