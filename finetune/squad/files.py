"""Finds the training and development files of SQuAD: in a folder, at a path, or in TFDS. Imports no jax."""

import pathlib
import re
from collections.abc import Callable

from data import squad, tfds_reader
from data.errors import DataError
from data.squad import SquadFile

_OFFICIAL_NAME = re.compile(r"(train|dev)-v(1\.1|2\.0)\.json(?:\.gz)?")


def read(
  train_file: str, dev_file: str, directory: str, *, group: str = "squad", download: bool = False
) -> tuple[SquadFile, SquadFile]:
  """Reads SQuAD's training and development files; finds both before it reads one.

  Each is a file in `directory` or a path; '.gz' may be missing. If there is none, 'train-v2.0.json' and other
  official names are read from TFDS, in the data_dir `directory` ('': TFDS's default). Errors name fields of
  `group`. DataError: a file is missing or damaged, or the versions differ.
  """
  readers = _readers(train_file, dev_file, directory, group=group, download=download)
  train, dev = (read() for read in readers)
  if train.version != dev.version:
    raise DataError(
      f"{group}.train_file {train.source} is SQuAD {train.version}, but {group}.dev_file {dev.source} is "
      f"SQuAD {dev.version}; use one version:\n"
      f"  --config.{group}.train_file=FILE\n  --config.{group}.dev_file=FILE"
    )
  return train, dev


def check(
  train_file: str, dev_file: str, directory: str, *, group: str = "squad", download: bool = False
) -> None:
  """Checks that both files of SQuAD exist, without opening them; arguments and errors as of `read`."""
  _readers(train_file, dev_file, directory, group=group, download=download)


def _readers(
  train_file: str, dev_file: str, directory: str, *, group: str, download: bool
) -> list[Callable[[], SquadFile]]:
  names = {f"{group}.train_file": train_file, f"{group}.dev_file": dev_file}
  return [_reader(field, name, directory, download=download) for field, name in names.items()]


def _reader(field: str, name: str, directory: str, *, download: bool) -> Callable[[], SquadFile]:
  """Finds one file of SQuAD and returns the function that reads it."""
  asked = pathlib.Path(name).expanduser()
  paths = [*([pathlib.Path(directory).expanduser() / asked] if directory else []), asked]
  looked = [path for plain in dict.fromkeys(paths) for path in (plain, plain.with_name(f"{plain.name}.gz"))]
  for path in looked:
    if path.is_file():
      return lambda: squad.read(path)
  official = _OFFICIAL_NAME.fullmatch(name)
  searched = [f"{path} (or .gz)" for path in looked[::2]]
  ways = f"\n  --config.{field}=FILE\n  --config.data.directory=DIR"
  if official:
    split, version = official.groups()
    if download or tfds_reader.find(directory, f"squad/v{version}"):
      return lambda: squad.read_tfds(directory, version, split, download=download)
    searched.append(f"TFDS's squad/v{version} in {tfds_reader.place(directory)}")
    ways += "\n  --download"
  advice = f"name it or its folder{', or let TFDS download it' if official else ''}"
  raise DataError(f"{field}={name!r}: no such file; looked for {', '.join(searched)}; {advice}:{ways}")
