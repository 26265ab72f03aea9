"""Golden files on disk: `NAME.npz` with the arrays and `NAME.json` with what was run.

Kinds about text have no arrays: their JSON holds the values, each leaf under its path ("results/exact").
"""

import json
import re
import zipfile
from pathlib import Path

import numpy as np

from data.errors import DataError

# Kinds whose values are in the JSON.
TEXT_KINDS = ("i_squad", "k_tokenizer")


class Golden:
  """One golden file; remembers which arrays were looked at."""

  def __init__(self, name: str, info: dict, arrays: dict[str, np.ndarray], directory: Path = Path()):
    self.name, self.info, self.arrays, self.directory = name, info, arrays, directory
    self.touched: set[str] = set()

  @property
  def kind(self) -> str:
    """The name cut before its second underscore."""
    return kind_of(self.name)

  def __contains__(self, key: str) -> bool:
    return key in self.arrays

  def __getitem__(self, key: str) -> np.ndarray:
    if key not in self.arrays:
      raise DataError(f"{self.name}: there is no array {key!r} in the file")
    self.touched.add(key)
    return self.arrays[key]

  def field(self, name: str):
    """A field of the JSON."""
    if name not in self.info:
      raise DataError(f"{self.name}.json: there is no field {name!r}")
    return self.info[name]

  def under(self, prefix: str) -> dict[str, np.ndarray]:
    """{rest of the key: array} of the keys that begin with `prefix`."""
    found = [key for key in self.arrays if key.startswith(prefix)]
    return {key.removeprefix(prefix): self[key] for key in found}

  def groups(self, pattern: str) -> list[re.Match]:
    """Matches of a pattern at the start of keys, each text once, in the file's order."""
    found = (re.match(pattern, key) for key in self.arrays)
    return list({match.group(): match for match in found if match}.values())

  def untouched(self) -> list[str]:
    """Keys nobody asked for."""
    return [key for key in self.arrays if key not in self.touched]


def kind_of(name: str) -> str:
  """'j_amos' of 'j_amos_base'."""
  return "_".join(name.split("_")[:2])


def leaves(value, path: str = "") -> dict[str, np.ndarray]:
  """{path: array of Python objects} of scalars and lists of scalars; other lists and objects are walked."""
  if isinstance(value, dict):
    children = value.items()
  elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
    children = enumerate(value)
  else:
    return {path: np.asarray(value, dtype=object)}  # NumPy's own texts lose NUL characters at the end
  found = {}
  for key, child in children:
    found |= leaves(child, f"{path}/{key}" if path else str(key))
  return found


def names_in(directory: Path) -> list[str]:
  """Names of the golden files of a directory, sorted; folders in it are not looked into.

  Raises:
    DataError: no such directory, or no golden file in it.
  """
  if not directory.is_dir():
    raise DataError(
      f"{directory}: no such directory; give the folder that holds the golden .npz and .json files"
    )
  names = sorted({path.stem for path in directory.iterdir() if path.suffix in (".npz", ".json")})
  if not names:
    raise DataError(f"{directory}: no golden file in it (.npz with a .json of the same name)")
  return names


def load(directory: Path, name: str) -> Golden:
  """Reads both files of a golden, every array at once, so that a damaged one is noticed here.

  Raises:
    DataError: a file is missing or cannot be read.
  """
  try:
    info = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
    if kind_of(name) in TEXT_KINDS and isinstance(info, dict):
      return Golden(name, info, leaves(info), directory)
    with np.load(directory / f"{name}.npz", allow_pickle=False) as file:
      arrays = {key: file[key] for key in file.files}
  except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zipfile.zlib.error) as error:
    raise DataError(f"{name}: unreadable ({type(error).__name__}: {error})") from error
  if not isinstance(info, dict):
    raise DataError(f"{name}.json: expected an object, found {type(info).__name__}")
  return Golden(name, info, arrays, directory)
