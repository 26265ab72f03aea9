"""PyTorch's own files, read as data: nothing that is pickled in them is imported or called.

Torch's restricted unpickler (`weights_only=True`) builds tensors and plain containers and refuses all else.
The settings of fairseq are let in besides: `argparse.Namespace`, which only holds attributes, and the classes
of OmegaConf, each replaced by a stand-in that keeps what was pickled and does nothing.
"""

import argparse
import contextlib
import importlib.util
import itertools
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.errors import ConfigError, DataError, named_reason, on_one_line, reason

# Modules and single names whose pickled mention is replaced by a stand-in: none of them is ever imported.
_SETTINGS_MODULES = ("omegaconf", "fairseq", "typing", "numpy")
_SETTINGS_NAMES = frozenset(
  {
    "_operator.getitem",
    *(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "str", "tuple")),
  }
)
_MOST_SETTINGS = 100_000  # values; a file can refer to one list so often that it never ends


class _StandIn:
  """What takes the place of a pickled object of a class that is not imported."""

  arguments: tuple[Any, ...]
  state: Any = None

  def __new__(cls, *arguments: Any, **_) -> "_StandIn":
    made = super().__new__(cls)
    made.arguments = arguments
    return made

  def __init__(self, *_, **__) -> None:
    """Takes whatever the class took."""

  def __setstate__(self, state: Any) -> None:
    self.state = state


def _dictionary(*_) -> dict:
  """In place of `collections.defaultdict`, whose factory would be a call."""
  return {}


def read_pickle(path: Path) -> Any:
  """Reads a file of `torch.save`, of the zip form or the older one.

  Tensors are on the CPU, mapped from the file where its form allows it. DataError: damaged, not such a file,
  or it names a class or function that would have to be called. ConfigError: PyTorch is not installed.
  """
  if importlib.util.find_spec("torch") is None:
    raise ConfigError(f"{path}: reading it needs PyTorch; pip install -r requirements-export.txt")
  import torch

  is_zip = _check_zip(path)
  try:
    with warnings.catch_warnings(), _allowed(path, is_zip):
      warnings.simplefilter("ignore")
      return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
  except Exception as error:  # a damaged pickle fails as it likes: KeyError, IndexError, struct.error, ...
    raise DataError(_refusal(path, error)) from error


def _check_zip(path: Path) -> bool:
  """Whether it is of the zip form; what torch writes there is never compressed, so nothing can swell."""
  try:
    if not zipfile.is_zipfile(path):
      return False
    with zipfile.ZipFile(path) as archive:
      entries = archive.infolist()
  except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
    raise DataError(f"{path}: a damaged PyTorch file ({reason(error)}); copy or download it again") from error
  size = path.stat().st_size
  for entry in entries:
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size:
      raise DataError(
        f"{path}: entry {entry.filename!r} is compressed or larger than the file; PyTorch stores its entries "
        "as they are, so save the checkpoint again with torch.save"
      )
  return True


@contextlib.contextmanager
def _allowed(path: Path, is_zip: bool) -> Iterator[None]:
  import torch

  named = torch.serialization.get_unsafe_globals_in_checkpoint(path) if is_zip else ()
  allowed: list[Any] = [argparse.Namespace]
  for name in named:
    if name == "collections.defaultdict":
      allowed.append((_dictionary, name))
    elif name in _SETTINGS_NAMES or name.partition(".")[0] in _SETTINGS_MODULES:
      allowed.append((_StandIn, name))
  with torch.serialization.safe_globals(allowed):
    yield


def _refusal(path: Path, error: Exception) -> str:
  text = on_one_line(error)
  for mark in ("Unsupported global: GLOBAL ", "unsupported GLOBAL "):
    if mark in text:
      name = text.split(mark, 1)[1].split(" ", 1)[0]
      return (
        f"{path}: it asks to call {name}, which is code and was not run; a checkpoint holds tensors only, so "
        "convert it to safetensors where you trust it"
      )
  # Torch's restricted unpickler puts pages of advice before what was wrong, other errors put it after.
  text = text.rpartition("WeightsUnpickler error: ")[2].partition(" Check the documentation")[0]
  return (
    f"{path}: not a PyTorch checkpoint that can be read as data ({named_reason(error, words=text[:120])}); "
    "copy or download it again"
  )


def check_storages(path: Path, tensors: Mapping[str, Any]) -> None:
  """A DataError for tensors that claim more memory than the file has bytes, before any is touched."""
  size, total, seen = path.stat().st_size, 0, set()
  for name, tensor in tensors.items():
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in seen:
      seen.add(storage.data_ptr())
      total += storage.nbytes()
    if tensor.numel() * tensor.element_size() > storage.nbytes() or total > size:
      raise DataError(
        f"{path}: tensor {name} claims {tensor.numel():,} elements, more than {size:,} bytes hold; "
        "copy or download it again"
      )


def plain(value: Any) -> Any:
  """Settings as dicts, lists, numbers and text; None for what is none of those.

  `value` is what `read_pickle` gave for `args` or `cfg`: Namespace, dict, stand-ins for OmegaConf's nodes.
  DataError: so many, or so deep, that they are no settings.
  """
  try:
    return _plain(value, itertools.count())
  except RecursionError as error:
    raise DataError("checkpoint: its settings (args or cfg) are nested too deeply; it is damaged") from error


def _plain(value: Any, count: Iterator[int]) -> Any:
  if next(count) > _MOST_SETTINGS:
    raise DataError(f"checkpoint: more than {_MOST_SETTINGS:,} settings (args or cfg); it is damaged")
  if isinstance(value, _StandIn):
    state = value.state if isinstance(value.state, dict) else {}
    if not state:  # an enumeration's member is pickled as its value
      return _plain(value.arguments[0], count) if len(value.arguments) == 1 else None
    return _plain(state.get("_content", state.get("_val")), count)
  if isinstance(value, argparse.Namespace):
    value = vars(value)
  if isinstance(value, dict):
    return {name: _plain(inner, count) for name, inner in value.items() if isinstance(name, str)}
  if isinstance(value, list | tuple):
    return [_plain(inner, count) for inner in value]
  return value if isinstance(value, bool | int | float | str) else None
