"""Reads checkpoint files of other libraries as data, and writes safetensors and JSON.

Read are safetensors, PyTorch's `.bin`, and fairseq's `model.pt`.

Every file may be hostile: none of its code runs, no name in it may point outside its folder, and declared
sizes are checked against the file's size before memory is allocated. A bad file raises a DataError.
"""

import argparse
import importlib.util
import json
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

from data import errors
from data.errors import ConfigError, DataError
from data.files import sha256

WEIGHT_FILES = (  # the first one that exists is read
  "model.safetensors",
  "model.safetensors.index.json",
  "pytorch_model.bin",
  "pytorch_model.bin.index.json",
  "model.pt",
)
EXTRA = "extra.safetensors"  # parameters of ours that a class has no place for, under our paths
# Prefixes in a state_dict() of DistributedDataParallel, torch.compile and FSDP, instead of the model's own.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
_AGAIN = "copy or download it again"

# Suffixes of files that are read from a folder.
_SUFFIXES = (".safetensors", ".bin", ".pt", ".json", ".txt", ".model")
# A pickle may name these beside tensors: fairseq stores its settings in OmegaConf, Composer numpy arrays.
# None of them is imported: `_Inert` takes their place.
_INERT_MODULES = ("omegaconf", "fairseq", "typing", "numpy")
_INERT_NAMES = frozenset(
  ("collections.defaultdict", "_operator.getitem")
  + tuple(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "str", "tuple"))
)


class ForeignCheckpoint(NamedTuple):
  """The contents of another library's checkpoint."""

  state: dict[str, np.ndarray]  # weights, float32, all finite
  buffers: dict[str, np.ndarray]  # integers and booleans: counters, position numbers
  config: dict[str, Any]  # config.json, or fairseq's model settings; {} if there are none
  folder: Path
  digests: dict[str, str]  # {file name: sha256} of the files with weights
  wrapper: str = ""  # prefix of all names, added by a wrapper of PyTorch, removed here


def read_state(path: str | Path) -> ForeignCheckpoint:
  """Reads a checkpoint file, or a folder with one of `WEIGHT_FILES` and its shards, or with a single `.pt`.

  `config.json` beside it is read if it exists. float16 and bfloat16 become float32, which is exact; arrays
  may be read-only views of the file. DataError, with file and tensor: a file is missing or damaged, or
  contains code; a tensor has an unsupported type, NaN or infinity.
  """
  path = Path(path)
  _check_links(path)
  files = _weight_files(path)
  folder = files[0].parent
  digests = {file.name: _sha256(file) for file in files}
  config_path = folder / "config.json"
  config = read_json(config_path) if config_path.is_file() else {}
  state, buffers = {}, {}
  for file in files:
    if file.suffix == ".safetensors":
      tensors = _safetensors(file)
    else:
      settings, tensors = _torch_tensors(file)
      config = config if settings is None else settings
    for name, array in tensors:
      if not name.isprintable():
        raise DataError(f"{file}: a tensor's name is {name[:80]!r}; expected printable characters; {_AGAIN}")
      if name in state or name in buffers:
        raise DataError(f"{file}: tensor {name} is in another shard too; {_AGAIN}")
      (state if array.dtype == np.float32 else buffers)[name] = array
  if not state:
    raise DataError(f"{path}: it contains no weights; check that it is the right file")
  wrapper = ""
  while wrapped := [part for part in _WRAPPERS if all(n.startswith(wrapper + part) for n in state | buffers)]:
    wrapper += wrapped[0]
  state, buffers = (
    {name.removeprefix(wrapper): array for name, array in of.items()} for of in (state, buffers)
  )
  return ForeignCheckpoint(state, buffers, config, folder, digests, wrapper)


def _check_links(path: Path) -> None:
  """Raises DataError for a pipe, a device, or a link that leaves the folder.

  Model folders are downloaded, and exports may be published: a link to a file of this machine would publish
  that file. Links within the folder are followed, and those of a download cache from `snapshots` to `blobs`.
  """
  folder = path if path.is_dir() else path.parent
  homes = [folder.resolve()]
  if homes[0].parent.name == "snapshots":
    homes.append(homes[0].parent.parent / "blobs")
  with errors.reading(folder, advice="check the path and its permissions"):
    within = [*folder.iterdir(), *folder.glob("vocabulary/*"), *folder.glob("*/config.json")]
    files = within if path.is_dir() else [path]
    for file in files:
      if file.suffix not in _SUFFIXES or file.is_dir() or not (file.exists() or file.is_symlink()):
        continue
      target = file.resolve()
      if not any(target.is_relative_to(home) for home in homes):
        raise DataError(
          f"{file}: a link to a file outside its folder ({target}), so nothing was read; if you trust that "
          "file, copy it here in place of the link"
        )
      if not target.is_file():
        raise DataError(f"{file}: not a regular file, so nothing in the folder was read")


def read_json(path: Path, kind: type = dict) -> Any:
  """Reads a JSON object, or with `kind` list an array; raises DataError for anything else."""
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise DataError(f"{path}: not a JSON object ({errors.reason(error)}); {_AGAIN}") from error
  if not isinstance(content, kind):
    expected = "object" if kind is dict else "array"
    raise DataError(f"{path}: it contains a {type(content).__name__}; expected a JSON {expected}; {_AGAIN}")
  return content


def _weight_files(path: Path) -> list[Path]:
  if path.is_dir():
    candidates = [path / name for name in WEIGHT_FILES if (path / name).is_file()] or sorted(
      path.glob("*.pt")
    )
    if not candidates or (len(candidates) > 1 and candidates[0].name not in WEIGHT_FILES):
      what = f"{len(candidates)} .pt files" if candidates else "no checkpoint"
      raise DataError(
        f"{path}: {what} in it; expected one of {', '.join(WEIGHT_FILES)}; or give the file's own path"
      )
    path = candidates[0]
  if not path.is_file():
    raise DataError(f"{path}: no such file; expected a checkpoint's file or folder")
  return _shards(path) if path.name.endswith(".index.json") else [path]


def _shards(index: Path) -> list[Path]:
  weight_map = read_json(index).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise DataError(f"{index}: its weight_map is missing or empty; {_AGAIN}")
  names = sorted({str(name) for name in weight_map.values()})
  for name in names:
    if Path(name).name != name or name in (".", "..") or "\0" in name:
      raise DataError(f"{index}: its weight_map has {name!r}, not a file in its folder; do not use it")
    if not (index.parent / name).is_file():
      raise DataError(f"{index}: its shard {name} is missing; {_AGAIN}")
  return [index.parent / name for name in names]


def _sha256(path: Path) -> str:
  with errors.reading(path, advice=_AGAIN):
    return sha256(path)


def _safetensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, array) from one file; the library checks the header against the file's size."""
  try:
    with safetensors.safe_open(path, framework="np") as file:
      for name in sorted(file.keys()):
        array = file.get_tensor(name)
        if array.dtype.kind == "c":
          raise DataError(f"{path}: tensor {name} has type {array.dtype}; expected real numbers")
        yield name, _checked(path, name, array)
  except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
    raise DataError(f"{path}: damaged safetensors ({errors.reason(error)}); {_AGAIN}") from error


def _checked(path: Path, name: str, array: np.ndarray) -> np.ndarray:
  """Returns a tensor as float32, integers and booleans unchanged. DataError: NaN, infinity, or lost bits."""
  if array.dtype.kind in "iub" and array.dtype != ml_dtypes.bfloat16:
    return array
  with np.errstate(over="ignore"):
    single = array.astype(np.float32, copy=False)
  bad = np.count_nonzero(~np.isfinite(single))
  if bad:
    raise DataError(f"{path}: tensor {name} has {bad} of {array.size} values that are NaN or infinity")
  if array.dtype == np.float64 and not np.array_equal(single, array):
    raise DataError(f"{path}: tensor {name} is float64 and does not fit float32; convert it first")
  return single


class _Inert(dict):
  """Stands for a pickled object whose class is not imported: it keeps its pickled state and does nothing."""

  state: Any = None

  def __new__(cls, *_, **__) -> "_Inert":
    return super().__new__(cls)

  def __init__(self, *_, **__) -> None:
    """Ignores the arguments."""

  def __setstate__(self, state: Any) -> None:
    self.state = state


def _read_pickle(path: Path) -> Any:
  """Reads a file of `torch.save`, in the zip format or the older one, by PyTorch's restricted unpickler.

  Tensors are on the CPU, memory-mapped if the format allows it. DataError: the file is damaged, is not a
  checkpoint, or refers to a class or function that would be called. ConfigError: PyTorch is not installed.
  """
  if importlib.util.find_spec("torch") is None:
    raise ConfigError(f"{path}: reading it needs PyTorch\n  pip install -r requirements-export.txt")
  import torch

  try:
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
      with zipfile.ZipFile(path) as archive:
        size = path.stat().st_size
        if any(each.compress_type or each.file_size > size for each in archive.infolist()):
          raise ValueError("an entry is compressed or larger than the file, unlike those of torch.save")
    named = torch.serialization.get_unsafe_globals_in_checkpoint(path) if is_zip else []
    inert = [name for name in named if name in _INERT_NAMES or name.partition(".")[0] in _INERT_MODULES]
    allowed = [argparse.Namespace, *((_Inert, name) for name in inert)]
    with warnings.catch_warnings(), torch.serialization.safe_globals(allowed):
      warnings.simplefilter("ignore")
      return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
  except Exception as error:  # a damaged pickle fails as it likes: KeyError, IndexError, struct.error, ...
    text = errors.on_one_line(error)
    if called := re.search(r"GLOBAL (\S+)", text):
      raise DataError(
        f"{path}: it would call {called[1]}, which was not run, because a checkpoint must contain tensors "
        "only; if you trust the file, convert it to safetensors elsewhere"
      ) from error
    # PyTorch puts pages of advice before the reason, or after it.
    text = text.rpartition("WeightsUnpickler error: ")[2].partition(" Check the documentation")[0]
    why = errors.named_reason(error, words=text[:120])
    raise DataError(f"{path}: not a PyTorch checkpoint that can be read as data; {_AGAIN} ({why})") from error


def _torch_tensors(path: Path) -> tuple[dict | None, Iterator[tuple[str, np.ndarray]]]:
  """Returns the settings of a fairseq file (None for other files), and its tensors.

  Composer, with which ModernBERT was trained, has them under 'state', beside its optimizer's.
  """
  content = _read_pickle(path)
  if not isinstance(content, dict):
    raise DataError(f"{path}: it contains a {type(content).__name__}; expected a dict of tensors")
  composer = content.get("state")
  if isinstance(composer, dict) and isinstance(composer.get("model"), dict):
    return None, _from_torch(path, composer["model"])
  if not isinstance(content.get("model"), dict):
    return None, _from_torch(path, content)
  settings = _entries(content.get("args") or content.get("cfg"))
  settings = _entries(settings.get("model")) or settings
  plain = {name: value for name, value in settings.items() if isinstance(value, bool | int | float | str)}
  return plain, _from_torch(path, content["model"])


def _entries(value: Any) -> dict[Any, Any]:
  """Returns the entries of a Namespace, a dict or a node of OmegaConf; {} of anything else."""
  value = vars(value) if isinstance(value, argparse.Namespace) else _of_omegaconf(value)
  return {name: _of_omegaconf(each) for name, each in value.items()} if isinstance(value, dict) else {}


def _of_omegaconf(value: Any) -> Any:
  if not isinstance(value, _Inert):
    return value
  state = value.state if isinstance(value.state, dict) else {}
  return state.get("_content", state.get("_val"))


def _from_torch(path: Path, tensors: dict) -> Iterator[tuple[str, np.ndarray]]:
  import torch

  size = path.stat().st_size
  floats = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
  made: dict[tuple, np.ndarray] = {}  # so that tied tensors are converted once
  for name, tensor in tensors.items():
    if not isinstance(name, str):
      raise DataError(f"{path}: a key is a {type(name).__name__}; expected names of tensors")
    is_dense = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not is_dense or tensor.is_quantized or tensor.device.type != "cpu":
      raise DataError(f"{path}: entry {name[:80]!r} is a {type(tensor).__name__}; expected a dense tensor")
    if tensor.dtype.is_complex or (tensor.dtype.is_floating_point and tensor.dtype not in floats):
      raise DataError(f"{path}: tensor {name} has type {tensor.dtype}; expected a float of 16 or 32 bits")
    if tensor.numel() * tensor.element_size() > size:
      raise DataError(
        f"{path}: tensor {name} claims {tensor.numel():,} elements, more than {size:,} bytes hold; {_AGAIN}"
      )
    key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if key not in made:
      dense = tensor.detach().resolve_neg()
      made[key] = _checked(path, name, (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy())
    yield name, made[key]


def save_tensors(path: Path, state: Mapping[str, np.ndarray]) -> None:
  """Writes contiguous arrays as safetensors for PyTorch; writes no file for an empty state."""
  if state:
    path.touch()
    mode = path.stat().st_mode  # by the umask; the library would make it readable by its owner only
    save_file(dict(state), path, metadata={"format": "pt"})
    path.chmod(mode)


def save_json(path: Path, content: Mapping[str, Any]) -> None:
  """Writes a mapping as indented JSON with sorted keys."""
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
