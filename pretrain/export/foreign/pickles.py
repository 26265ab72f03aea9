"""Reads PyTorch's own files as data: nothing that is pickled in them is imported or called.

PyTorch's restricted unpickler (`weights_only=True`) builds tensors and plain containers and raises for all
else. fairseq's settings are allowed too: `argparse.Namespace`, which only has attributes, and OmegaConf's
classes, each replaced by a stand-in that stores its pickled state and does nothing.
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

# Modules and names that are replaced by a stand-in when a pickle refers to them; they are never imported.
_SETTINGS_MODULES = ("omegaconf", "fairseq", "typing", "numpy")
_SETTINGS_NAMES = frozenset(
  {
    "_operator.getitem",
    *(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "str", "tuple")),
  }
)
_MOST_SETTINGS = 100_000  # values; nested references to one list could make a small file endless


class _StandIn:
  """Replaces a pickled object whose class is not imported; stores its arguments and state."""

  arguments: tuple[Any, ...]
  state: Any = None

  def __new__(cls, *arguments: Any, **_) -> "_StandIn":
    made = super().__new__(cls)
    made.arguments = arguments
    return made

  def __init__(self, *_, **__) -> None:
    """Accepts and ignores any arguments."""

  def __setstate__(self, state: Any) -> None:
    self.state = state


def _dictionary(*_) -> dict:
  """Replaces `collections.defaultdict`, whose factory would be called."""
  return {}


def read_pickle(path: Path) -> Any:
  """Reads a file of `torch.save`, in the zip format or the older one.

  Tensors are on the CPU, memory-mapped if the format allows it. DataError: the file is damaged, is not a
  checkpoint, or refers to a class or function that would be called. ConfigError: PyTorch is not installed.
  """
  if importlib.util.find_spec("torch") is None:
    raise ConfigError(f"{path}: reading it needs PyTorch\n  pip install -r requirements-export.txt")
  import torch

  is_zip = _check_zip(path)
  try:
    with warnings.catch_warnings(), _allowed(path, is_zip):
      warnings.simplefilter("ignore")
      return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
  except Exception as error:  # a damaged pickle fails as it likes: KeyError, IndexError, struct.error, ...
    raise DataError(_refusal(path, error)) from error


def _check_zip(path: Path) -> bool:
  """Returns whether the file has the zip format; raises DataError if an entry is compressed or too large."""
  try:
    if not zipfile.is_zipfile(path):
      return False
    with zipfile.ZipFile(path) as archive:
      entries = archive.infolist()
  except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
    raise DataError(f"{path}: a damaged PyTorch file; copy or download it again ({reason(error)})") from error
  size = path.stat().st_size
  for entry in entries:
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size:
      raise DataError(
        f"{path}: entry {entry.filename!r} is compressed or larger than the file; expected the uncompressed "
        "entries of torch.save; save the checkpoint again with it"
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
        f"{path}: it would call {name}, which was not run, because a checkpoint must contain tensors only; "
        "if you trust the file, convert it to safetensors elsewhere"
      )
  # PyTorch puts pages of advice before the reason, or after it.
  text = text.rpartition("WeightsUnpickler error: ")[2].partition(" Check the documentation")[0]
  return (
    f"{path}: not a PyTorch checkpoint that can be read as data; copy or download it again "
    f"({named_reason(error, words=text[:120])})"
  )


def check_storages(path: Path, tensors: Mapping[str, Any]) -> None:
  """Raises DataError if tensors claim more memory than the file has bytes, before they are read."""
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
  """Converts settings to dicts, lists, numbers and text; anything else becomes None.

  `value` is `args` or `cfg` from `read_pickle`: a Namespace, a dict, or stand-ins for OmegaConf's nodes.
  DataError: the settings are too many or too deeply nested.
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
    if not state:  # a member of an enumeration is pickled as its value
      return _plain(value.arguments[0], count) if len(value.arguments) == 1 else None
    return _plain(state.get("_content", state.get("_val")), count)
  if isinstance(value, argparse.Namespace):
    value = vars(value)
  if isinstance(value, dict):
    return {name: _plain(inner, count) for name, inner in value.items() if isinstance(name, str)}
  if isinstance(value, list | tuple):
    return [_plain(inner, count) for inner in value]
  return value if isinstance(value, bool | int | float | str) else None
