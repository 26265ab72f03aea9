"""How tensors of official PyTorch checkpoints become our arrays and back: a row, a part, a walk over both.

Torch keeps a linear layer as (out, in), every layer apart, and query, key and value in one tensor; here
kernels are (in, out), layers are stacked `[layers, ...]`, and query, key and value are apart.
"""

import collections
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, nearest

State = dict[str, np.ndarray]  # {official name: array}


class Layout(NamedTuple):
  """How one official tensor becomes our arrays (of one layer) and back."""

  read: Callable[[np.ndarray, int], list[np.ndarray]]  # tensor, number of heads
  write: Callable[[list[np.ndarray]], np.ndarray]


class Row(NamedTuple):
  """One official tensor. `{}` in a name is the layer, and its arrays are stacked."""

  fairseq: str | None
  hugging_face: str | None
  paths: tuple[str, ...]
  shape: tuple[str, ...]  # of the official tensor: V vocabulary, D embed, P positions, F mlp, ...
  layout: Layout


class Part(NamedTuple):
  """Rows that are there together or not at all."""

  rows: tuple[Row, ...]
  path: str  # prefix of our paths
  fairseq: str | None = None  # prefix of the names; None: this layout has no such part
  hugging_face: str | None = None
  is_required: bool = False  # of every encoder, or of every generator


class Tie(NamedTuple):
  """A tensor that a checkpoint lists a second time under another name."""

  name: str
  original: str
  path: str  # the duplicate is written where this parameter exists


class Imported(NamedTuple):
  """What was read."""

  params: dict
  unmatched: tuple[str, ...]  # names in the checkpoint that the table does not know
  matched: tuple[str, ...]  # names that were read
  known: tuple[str, ...]  # names that the table knows and the checkpoint has not, `{}` for a layer


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


def _names_of(part: Part, row: Row, kind: str) -> str | None:
  prefix, name = getattr(part, kind), getattr(row, kind)
  return None if prefix is None or name is None else prefix + name


def without_layer(name: str) -> str:
  """The name of a tensor as a row of a table has it: `{}` for the number of its layer."""
  return re.sub(r"\.\d+\.", ".{}.", name)


def _matching(state: State, name: str) -> list[str]:
  """Names in the checkpoint that are `name`, in the order of layers if it has one."""
  if "{}" not in name:
    return [name] if name in state else []
  before, after = (re.escape(piece) for piece in name.split("{}"))
  matches = filter(None, (re.fullmatch(before + r"(\d+)" + after, key) for key in state))
  return [match.group() for match in sorted(matches, key=lambda match: int(match.group(1)))]


class _Reader:
  """Takes tensors out of a checkpoint, checking their shapes against each other."""

  def __init__(self, state: State, kind: str, num_heads: int, known: set[str], sizes: Mapping[str, int]):
    self.state, self.kind, self.num_heads, self.known = state, kind, num_heads, known
    self.sizes = {"A": num_heads, "1": 1, "2": 2, **sizes}
    self.used: set[str] = set()

  def _is_known(self, name: str) -> bool:
    """Whether the table has a row for a name in the checkpoint, and its trunk so many layers."""
    numbers = re.findall(r"\.(\d+)\.", name)
    pattern = without_layer(name)
    return pattern in self.known and all(int(number) < self.num_layers(pattern) for number in numbers)

  def take(self, name: str, shape: tuple[str, ...]) -> np.ndarray:
    """The tensor of a name; a size seen for the first time is what later tensors must have."""
    if name not in self.state:
      found = nearest(name, (other for other in self.state if not self._is_known(other)))
      what = f" and {found}, which is like it, is read by nothing" if found else ""
      raise DataError(
        f"checkpoint: tensor {name} is missing{what}; is it complete and of this kind ({self.kind})?"
      )
    array = np.asarray(self.state[name])
    fits = array.ndim == len(shape)
    for symbol, length in zip(shape, array.shape if fits else ()):
      factor = 3 if symbol.startswith("3") else 1
      size = self.sizes.setdefault(symbol.lstrip("3"), length // factor)
      fits = fits and length == factor * size
    if not fits:
      expected = [f"{symbol}={self.sizes[symbol]}" if symbol in self.sizes else symbol for symbol in shape]
      raise DataError(
        f"checkpoint: tensor {name} has shape {array.shape}, expected ({', '.join(expected)}) as in the "
        "other tensors or its config; check the checkpoint and the number of heads"
      )
    if "D" in self.sizes and self.sizes["D"] % self.num_heads:
      raise DataError(f"checkpoint: width {self.sizes['D']} of {name} cannot have {self.num_heads} heads")
    self.used.add(name)
    return array

  def row(self, name: str, row: Row) -> list[np.ndarray]:
    """Our arrays of one row, layers stacked."""
    if "{}" not in name:
      return row.layout.read(self.take(name, row.shape), self.num_heads)
    count = self.num_layers(name)
    layers = [self.take(name.format(i), row.shape) for i in range(count)]
    return [np.stack(arrays) for arrays in zip(*(row.layout.read(a, self.num_heads) for a in layers))]

  def num_layers(self, name: str) -> int:
    """Layers of the trunk that `name` belongs to, at least 1, by the highest number in its names.

    A number that one name alone has is misspelt.
    """
    pattern = re.escape(name.split("{}")[0]) + r"(\d+)\."
    matches = filter(None, (re.match(pattern, key) for key in self.state))
    tensors = collections.Counter(int(match.group(1)) for match in matches)
    return max((number for number, count in tensors.items() if count > 1), default=0) + 1


def put(params: dict, path: str, array: np.ndarray) -> None:
  """Adds an array at 'a/b/c'; DataError where there is one already, or on the way there."""
  *modules, leaf = path.split("/")
  inner: Any = params
  for module in modules:
    inner = inner.setdefault(module, {}) if isinstance(inner, dict) else None
  if not isinstance(inner, dict) or leaf in inner:
    raise DataError(
      f"checkpoint: the parameter {path} is there twice, or inside another; take all its files from the same "
      "export"
    )
  inner[leaf] = array


def _get(params: dict, path: str) -> np.ndarray | None:
  for module in path.split("/"):
    params = params.get(module) if isinstance(params, dict) else None
  return params


def read(
  state: State,
  parts: Iterable[Part],
  kind: str,
  *,
  num_heads: int,
  ties: Iterable[Tie] = (),
  sizes: Mapping[str, int] | None = None,
) -> Imported:
  """Reads the parts a checkpoint has, arrays of its own dtype.

  What a network must have is required if any tensor of the network is there. DataError: a missing tensor, a
  wrong shape, or tied tensors that differ.

  Args:
    kind: 'fairseq' or 'hugging_face', the column of names.
    ties: tensors that may be listed twice; they must be equal and are read once.
    sizes: {symbol of `Row.shape`: size} known beforehand; the others are what the first tensor has.
  """
  parts, ties = tuple(parts), tuple(ties)
  known = {_names_of(part, row, kind) for part in parts for row in part.rows} - {None}
  known |= {tie.name for tie in ties}
  reader, params = _Reader(state, kind, num_heads, known, sizes or {}), {}
  has_generator = any(name.startswith("auxiliary.") for name in state)
  for part in parts:
    names = {_names_of(part, row, kind): row for row in part.rows}
    names.pop(None, None)
    is_required = part.is_required and (has_generator or not part.path.startswith("generator/"))
    if not is_required and not any(_matching(state, name) for name in names):
      continue
    for name, row in names.items():
      for path, array in zip(row.paths, reader.row(name, row)):
        put(params, part.path + path, array)
  for tie in ties:
    if tie.name in state:
      if not np.array_equal(state[tie.name], state.get(tie.original)):
        raise DataError(
          f"checkpoint: {tie.name} and {tie.original} are one tensor in the official models but differ here; "
          "check how the generator shares its embeddings"
        )
      reader.used.add(tie.name)
  unread = known - {*map(without_layer, reader.used)}
  return Imported(params, *(tuple(sorted(names)) for names in ({*state} - reader.used, reader.used, unread)))


def write(params: dict, parts: Iterable[Part], kind: str, *, ties: Iterable[Tie] = ()) -> State:
  """{official name: array} of our parameters, or of any tree of their structure, such as gradients.

  Parts whose parameters are not in the tree are left out; `ties` are listed twice, as the official models do.
  """
  state: State = {}
  for part in parts:
    for row in part.rows:
      name = _names_of(part, row, kind)
      arrays = [_get(params, part.path + path) for path in row.paths]
      if name is None or arrays[0] is None:
        continue
      arrays = [np.asarray(array) for array in arrays]
      if "{}" not in name:
        state[name] = row.layout.write(arrays)
        continue
      for i in range(arrays[0].shape[0]):
        state[name.format(i)] = row.layout.write([array[i] for array in arrays])
  for tie in ties:
    if _get(params, tie.path) is not None:
      state[tie.name] = state[tie.original]
  return state
