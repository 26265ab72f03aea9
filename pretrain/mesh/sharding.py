"""Meshes, the sharding of every parameter, and batches that span hosts.

One table maps a parameter's path to the names of its axes, another maps names to axes of the mesh. Flax's
boxes and logical-axis rules are not used, because the path is enough.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from data.errors import ConfigError, reason
from pretrain.mesh import trees
from pretrain.settings.run import MeshSettings

ArrayTree = Any

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
HEAD_AXIS = "tensor"

# Ending of a parameter's path -> its axes. Parameters under `layers` are stacked: one more axis in front.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
  (r"(token|table)/(embedding|difference)", ("vocab", "embed")),
  (r"(position|segment)/embedding", (None, "embed")),
  (r"relative_position/embedding", (None, "heads")),
  (r"relative/embedding", (None, None)),
  (r"attention/(query|key|value)/kernel", ("embed", "heads", None)),
  (r"attention/(query|key|value)/bias", ("heads", None)),
  (r"attention/output/kernel", ("heads", None, "embed")),
  (r"attention/output/bias", (None,)),
  (r"(up|gate)/kernel", ("embed", "mlp")),
  (r"(up|gate)/bias", ("mlp",)),
  (r"down/kernel", ("mlp", "embed")),
  (r"down/bias", (None,)),
  # LayerNorms are replicated: they have a few thousand numbers.
  (r"(norm|attention_norm|mlp_norm|first_norm|relative_norm)/(scale|bias)", (None,)),
  (r"inner_norms/(scale|bias)", (None, None)),
  (r"(dense|projection)/kernel", ("embed", None)),
  (r"(dense|projection)/bias", (None,)),
  (r"(mixture|rtd)/kernel", ("embed", None)),
  (r"rtd/bias", (None,)),
  (r"(mlm_head(_\d+)?|mlm|clm)/bias", ("vocab",)),
  # Heads of fine-tuning, of a few outputs.
  (r"heads/(\w+/output|tagging|question_answering)/kernel", (None, None)),
  (r"heads/(\w+/output|tagging|question_answering)/bias", (None,)),
)

PARAMETER_AXES = {"vocab": "tensor", "embed": "fsdp", "heads": "tensor", "mlp": "tensor"}
# Activations are sharded along the batch; along their width only after a tensor-parallel product.
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
# The vocabulary's size is given by the corpus (30,522 on tensor=4), so a table that cannot be sharded stays
# whole. All other sizes are choices, and one that the mesh does not divide is an error.
MAY_STAY_WHOLE = ("vocab",)


def make_mesh(settings: MeshSettings, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Arranges devices (None: all of all hosts) in a `data` x `fsdp` x `tensor` mesh.

  The product of the settings is the number of devices, as `command.rules` checks. The axes are Auto, because
  with JAX's default, Explicit, every gather would need a sharding. ConfigError: the layout is impossible.
  """
  devices = jax.devices() if devices is None else list(devices)
  return Mesh(arranged(settings, devices), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def arranged(settings: MeshSettings, devices: Sequence[jax.Device]) -> np.ndarray:
  """Arranges devices as an array [data, fsdp, tensor].

  Within a TPU slice JAX assigns axes to the links of the torus. Several slices, and GPUs of several nodes
  (each a slice to JAX), are connected by a slower network: only whole parts of `data` and `fsdp` cross it, as
  many as possible of `data`, or of `fsdp` with `fsdp_across_slices`, and never `tensor`.

  Raises:
    ConfigError: these devices cannot be arranged so.
  """
  sizes = settings.filled(len(devices))
  assert sizes is not None, (settings, len(devices))
  slices = len({getattr(device, "slice_index", None) for device in devices})
  if settings.fsdp_across_slices:
    fsdp = math.gcd(sizes.fsdp, slices)
    data = slices // fsdp
  else:
    data = math.gcd(sizes.data, slices)
    fsdp = slices // data
  try:
    if sizes.data % data or sizes.fsdp % fsdp:
      raise ValueError(
        f"there are {slices} nodes or slices, and tensor must not cross the network between them, so "
        f"mesh.data x mesh.fsdp must be a multiple of {slices}"
      )
    if slices == 1:
      return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    within = (sizes.data // data, sizes.fsdp // fsdp, sizes.tensor)
    return mesh_utils.create_hybrid_device_mesh(
      within, (data, fsdp, 1), devices, allow_split_physical_axes=True
    )
  except (NotImplementedError, ValueError, AssertionError) as error:
    asked = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes._asdict().items())
    raise ConfigError(
      f"{asked}: {len(devices)} x {devices[0].device_kind} in {slices} nodes or slices cannot be arranged so "
      f"({reason(error)}); use all devices of machines of one kind, and as the simplest mesh\n"
      "  --config.mesh.data=-1 --config.mesh.fsdp=1 --config.mesh.tensor=1"
    ) from error


def parts_of(devices: np.ndarray, process: int) -> list[int]:
  """Returns the numbers of the batch's data x fsdp parts of which a process's devices compute rows."""
  holders = devices.reshape(-1, devices.shape[-1])
  return [
    part for part, group in enumerate(holders) if any(device.process_index == process for device in group)
  ]


@functools.cache
def _compiled_rules() -> list[tuple[re.Pattern, tuple[str | None, ...]]]:
  return [(re.compile(rf"(^|/){pattern}$"), axes) for pattern, axes in RULES]


def logical_axes(path: str, ndim: int) -> tuple[str | None, ...] | None:
  """Returns the name, or None, of each of a parameter's `ndim` axes; None if no rule matches.

  Keys are joined by '/'; anything before the parameter's own path (Adam's 'mu/') is ignored.
  """
  for pattern, axes in _compiled_rules():
    if pattern.search(path):
      stacked = (None,) if "layers" in path.split("/") else ()
      return stacked + axes if len(stacked + axes) == ndim else None
  return None


def partition_spec(path: str, ndim: int) -> PartitionSpec:
  """Returns the partition spec of a parameter, whatever its sizes.

  With fewer than 2 axes a path without a rule is replicated, such as a counter.

  Raises:
    ConfigError: the path has two or more axes and no rule.
  """
  axes = logical_axes(path, ndim)
  if axes is None:
    if ndim >= 2:
      raise ConfigError(_unnamed([f"{path} ({ndim} axes)"]))
    return PartitionSpec()
  return PartitionSpec(*(axis and PARAMETER_AXES.get(axis) for axis in axes))


def _unnamed(parameters: list[str]) -> str:
  return f"no rule of sharding.RULES matches {', '.join(parameters)}; add one"


def update_axis(path: str, shape: tuple[int, ...], mesh_sizes: Mapping[str, int]) -> int | None:
  """Returns the axis of a parameter that is sharded over `data` by `optimizer.shard_update`, or None.

  It is the first axis that is not sharded otherwise and that the devices along `data` divide. None: each
  device updates the whole parameter, as for biases and LayerNorms, which are too small for an exchange of
  their own.
  """
  parts = mesh_sizes["data"]
  if parts == 1 or path.split("/")[-1] not in ("kernel", "embedding", "difference"):
    return None
  cuts = partition_spec(path, len(shape))
  free = [axis for axis, name in enumerate(cuts) if name is None or mesh_sizes[name] == 1]
  return next((axis for axis in free if shape[axis] % parts == 0), None)


def update_axes(params: ArrayTree) -> dict[str, int]:
  """Returns {path: `update_axis`} of the parameters that have one on the current mesh (`jax.set_mesh`)."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES:
    return {}
  axes = {path: update_axis(path, leaf.shape, mesh.shape) for path, leaf in trees.by_path(params).items()}
  return {path: axis for path, axis in axes.items() if axis is not None}


def shardings(mesh: Mesh, abstract_tree: ArrayTree, *, over_data: bool = False) -> ArrayTree:
  """Returns the NamedSharding of every leaf of parameters or optimizer state, in the same tree.

  The leaves are arrays or ShapeDtypeStructs, whose paths end like the parameters'. A vocabulary that the
  tensor axis does not divide stays whole; `command.rules` checks all other sizes. With `over_data` each leaf
  is also sharded along its `update_axis`.

  Raises:
    ConfigError: leaves of two or more axes without a rule, all listed.
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
  """Returns the sharding of arrays that every device has whole, such as metrics and counters."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of [batch, ...]: rows over `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def local_rows(mesh: Mesh, rows: int, process: int | None = None) -> list[int]:
  """Returns the rows of the global batch that a process must pass to `to_global`, in order; may have gaps.

  `rows` is the size of the global batch, a multiple of the devices along `data` and `fsdp`. `process` is the
  number of a process; None: this one.
  """
  each = rows // mesh.devices[..., 0].size
  held = parts_of(mesh.devices, jax.process_index() if process is None else process)
  return [row for part in held for row in range(part * each, (part + 1) * each)]


def to_global(mesh: Mesh, local: ArrayTree) -> ArrayTree:
  """Makes global jax arrays [batch, ...] from each process's numpy arrays of its `local_rows`."""
  held = len(parts_of(mesh.devices, jax.process_index()))

  def place(own: np.ndarray) -> jax.Array:
    whole = (len(own) // held * mesh.devices[..., 0].size, *np.shape(own)[1:])
    return jax.make_array_from_process_local_data(batch_sharding(mesh), np.asarray(own), whole)

  return jax.tree.map(place, local)


def automatic_axes() -> dict[str, int]:
  """Returns {axis: devices} that the current mesh leaves to the partitioner, without axes of one device."""
  mesh = jax.sharding.get_abstract_mesh()
  left = [name for name in mesh.axis_names if name not in mesh.manual_axes]
  return {name: mesh.shape[name] for name in left if mesh.shape[name] > 1}


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Constrains the sharding of an activation; `axes` are names in ACTIVATION_AXES, or None.

  Without a mesh of `make_mesh` (`jax.set_mesh`), or on fine-tuning's own mesh, `x` is returned unchanged.
  Inside `on_own_rows` the batch is one device's, and only `tensor` is constrained.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.axis_names != MESH_AXES or set(mesh.manual_axes) == set(MESH_AXES):
    return x
  names = [ACTIVATION_AXES[axis] if axis else None for axis in axes]
  if mesh.manual_axes:  # rows are already one device's own
    names = [None if name == BATCH_AXES else name for name in names]
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*names))
