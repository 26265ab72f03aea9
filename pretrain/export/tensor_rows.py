"""Converts tensors of PyTorch checkpoints to our arrays and back, by tables of rows.

PyTorch stores a linear layer as (out, in), every layer apart, and query, key and value in one tensor. Here
kernels are (in, out), layers are stacked `[layers, ...]`, and query, key and value are separate.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError

State = dict[str, np.ndarray]  # {name in the PyTorch checkpoint: array}


class Layout(NamedTuple):
  """Converts one official tensor to our arrays (of one layer) and back."""

  read: Callable[[np.ndarray, int], list[np.ndarray]]  # tensor, number of heads
  write: Callable[[list[np.ndarray]], np.ndarray]


class Row(NamedTuple):
  """One official tensor; `{}` in its name is the layer number, and its arrays are stacked over layers."""

  name: str
  paths: tuple[str, ...]
  shape: tuple[str, ...]  # symbols of its dimensions: V vocabulary, D embed, P positions, F mlp, ...
  layout: Layout


class Part(NamedTuple):
  """A group of tensors, a row each: a checkpoint has all of them or none."""

  rows: tuple[Row, ...]
  path: str  # prefix of our paths
  prefix: str = ""  # prefix of the official names
  is_required: bool = False  # in every encoder, or in every generator

  @property
  def held(self) -> set[str]:
    """Our paths that the rows hold."""
    return {self.path + path for row in self.rows for path in row.paths}


class Tie(NamedTuple):
  """A tensor that a checkpoint stores twice, the second time under another name."""

  name: str
  original: str
  path: str = ""  # the duplicate is written if this parameter exists; '': never


class Imported(NamedTuple):
  """The parameters of a checkpoint, with the names that were read and those that were not."""

  params: dict
  unmatched: tuple[str, ...]  # names in the checkpoint without a row in the table
  matched: tuple[str, ...]  # names that were read


SAME = Layout(lambda a, heads: [a], lambda parts: parts[0])
LINEAR = Layout(lambda a, heads: [a.T], lambda parts: parts[0].T)
QKV_KERNEL = Layout(
  lambda a, heads: [part.T.reshape(part.shape[1], heads, -1) for part in np.split(a, 3)],
  lambda parts: np.concatenate([kernel.reshape(kernel.shape[0], -1).T for kernel in parts]),
)
QKV_BIAS = Layout(
  lambda a, heads: [part.reshape(heads, -1) for part in np.split(a, 3)],
  lambda parts: np.concatenate([bias.reshape(-1) for bias in parts]),
)
OUTPUT_KERNEL = Layout(
  lambda a, heads: [a.T.reshape(heads, -1, a.shape[0])],
  lambda parts: parts[0].reshape(-1, parts[0].shape[-1]).T,
)


HEADS_KERNEL = Layout(
  lambda a, heads: [a.T.reshape(a.shape[1], heads, -1)],
  lambda parts: parts[0].reshape(parts[0].shape[0], -1).T,
)
HEADS_BIAS = Layout(lambda a, heads: [a.reshape(heads, -1)], lambda parts: parts[0].reshape(-1))


def linear(
  name: str,
  path: str,
  shape: tuple[str, str],
  kernel: Layout = LINEAR,
  bias: Layout = SAME,
  *,
  has_bias: bool = True,
) -> tuple[Row, ...]:
  """Returns the table rows of a linear layer's weight and bias; `shape` is (out, in).

  One tensor of a `path` 'a/b|c' holds the kernels of 'a/b' and 'a/c'. The path '' has no module.
  """
  prefix, _, last = path.rpartition("/")
  paths = [f"{prefix}/{each}/".lstrip("/") for each in last.split("|")]
  weight = Row(f"{name}.weight", tuple(f"{each}kernel" for each in paths), shape, kernel)
  return weight, *[Row(f"{name}.bias", tuple(f"{each}bias" for each in paths), shape[:1], bias)] * has_bias


def norm(name: str, path: str, size: str = "D", *, has_bias: bool = True) -> tuple[Row, ...]:
  """Returns the table rows of a norm's weight and bias."""
  weight = Row(f"{name}.weight", (f"{path}/scale",), (size,), SAME)
  return weight, *[Row(f"{name}.bias", (f"{path}/bias",), (size,), SAME)] * has_bias


def without_layer(name: str) -> str:
  """Replaces the layer number in a tensor's name by `{}`, as in the tables."""
  return re.sub(r"\.\d+\.", ".{}.", name)


def put(params: dict, path: str, array: np.ndarray) -> None:
  """Adds an array at 'a/b/c'; raises DataError if that path or a parent of it is already an array."""
  *modules, leaf = path.split("/")
  inner: Any = params
  for module in modules:
    inner = inner.setdefault(module, {}) if isinstance(inner, dict) else None
  if not isinstance(inner, dict) or leaf in inner:
    raise DataError(
      f"checkpoint: the parameter {path} occurs twice, or inside another; use files of one export only"
    )
  inner[leaf] = array


def read(
  state: State,
  parts: Iterable[Part],
  *,
  num_heads: int,
  ties: Iterable[Tie] = (),
  sizes: Mapping[str, int] | None = None,
) -> Imported:
  """Reads all parts that a checkpoint has; arrays keep their dtype.

  A required part is read if its network, encoder or generator, has any tensor. DataError: a tensor is missing
  or has a wrong shape, or tied tensors differ.

  Args:
    ties: tensors that may be stored twice; they must be equal and are read once.
    sizes: {symbol in `Row.shape`: size} where known; other symbols take the size in the first tensor.
  """
  known = {"A": num_heads, "1": 1, "2": 2, **(sizes or {})}
  params, used = {}, set()
  patterns = {without_layer(name) for name in state}
  has_generator = any(name.startswith("auxiliary.") for name in state)

  def take(name: str, shape: tuple[str, ...]) -> np.ndarray:
    if name not in state:
      raise DataError(f"checkpoint: tensor {name} is missing; check that all its files are there")
    array = np.asarray(state[name])
    fits = array.ndim == len(shape)
    for symbol, length in zip(shape, array.shape if fits else ()):
      factor = int(symbol[0]) if symbol[1:] and symbol[0].isdigit() else 1
      size = known.setdefault(symbol[factor > 1 :], length // factor)
      fits = fits and length == factor * size
    if not fits:
      expected = [f"{symbol}={known[symbol]}" if symbol in known else symbol for symbol in shape]
      raise DataError(
        f"checkpoint: tensor {name} has shape {array.shape}; expected ({', '.join(expected)}), by the other "
        "tensors or the config; check the files and the number of heads"
      )
    if "D" in known and known["D"] % num_heads:
      raise DataError(f"checkpoint: width {known['D']} of {name} is not divisible by {num_heads} heads")
    used.add(name)
    return array

  for part in parts:
    is_required = part.is_required and (has_generator or not part.path.startswith("generator/"))
    if not is_required and not any(part.prefix + row.name in patterns for row in part.rows):
      continue
    for row in part.rows:
      name = part.prefix + row.name
      if "{}" in name:
        layers = range(_num_layers(state, name.split("{}")[0]))
        read_layers = [row.layout.read(take(name.format(i), row.shape), num_heads) for i in layers]
        arrays = [np.stack(stacked) for stacked in zip(*read_layers)]
      else:
        arrays = row.layout.read(take(name, row.shape), num_heads)
      for path, array in zip(row.paths, arrays):
        put(params, part.path + path, array)
  for tie in ties:
    if tie.name in state:
      if tie.original not in state or not np.array_equal(state[tie.name], state[tie.original]):
        raise DataError(
          f"checkpoint: {tie.name} and {tie.original} differ, but are one tensor in the official models; "
          "check whether encoder and generator share embeddings"
        )
      used.add(tie.name)
  return Imported(params, tuple(sorted({*state} - used)), tuple(sorted(used)))


def _num_layers(state: State, prefix: str) -> int:
  """Returns 1 + the highest layer number in names that begin with `prefix`; at least 1."""
  numbers = (re.match(rf"{re.escape(prefix)}(\d+)\.", name) for name in state)
  return 1 + max((int(number.group(1)) for number in numbers if number), default=0)


def write(params: dict, parts: Iterable[Part], *, ties: Iterable[Tie] = ()) -> State:
  """Converts our parameters, or a tree of the same structure such as gradients, to {official name: array}.

  Parts without parameters in the tree are left out; `ties` are stored twice, as in the official models.
  """
  from pretrain.mesh import trees  # imports JAX, which the names of layouts do not need

  leaves, state = trees.by_path(params), {}
  for part in parts:
    for row in part.rows:
      name, paths = part.prefix + row.name, [part.path + path for path in row.paths]
      if paths[0] not in leaves:
        continue
      arrays = [np.asarray(leaves[path]) for path in paths]
      if "{}" in name:
        for i in range(len(arrays[0])):
          state[name.format(i)] = row.layout.write([array[i] for array in arrays])
      else:
        state[name] = row.layout.write(arrays)
  for tie in ties:
    if tie.path in leaves:
      state[tie.name] = state[tie.original]
  return state


def extra_of(params: dict, parts: Iterable[Part]) -> State:
  """Returns {our path: contiguous float32 array} of parameters that have no row in `parts`."""
  held = set().union(*(part.held for part in parts))
  return {path: array for path, array in flatten(params).items() if path not in held}


def flatten(params: dict) -> State:
  """Returns {'encoder/trunk/...': contiguous float32 array} of a tree of parameters."""
  from pretrain.mesh import trees

  return {path: np.ascontiguousarray(leaf, np.float32) for path, leaf in trees.by_path(params).items()}
