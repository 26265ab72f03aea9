"""Finds the two files of SQuAD: in a folder, at a path, or in a TFDS data_dir. Imports no jax."""

import pathlib
import re
from collections.abc import Callable

from data import squad, tfds_reader
from data.errors import DataError
from data.squad import SquadFile

_OFFICIAL_NAME = re.compile(r"(train|dev)-v(1\.1|2\.0)\.json(?:\.gz)?")


def read(
  train_file: str, dev_file: str, directory: str, *, download: bool = False
) -> tuple[SquadFile, SquadFile]:
  """Reads both files, after both were found: each a file in `directory`, or a path; '.gz' may be missing.

  A name such as 'train-v2.0.json' that is neither stands for TFDS's data set of that version, in the data_dir
  `directory` ('': TFDS's default). A file that is not there or damaged is a DataError, as are two versions.
  """
  train, dev = (read() for read in _readers(train_file, dev_file, directory, download=download))
  if train.version != dev.version:
    raise DataError(
      f"squad.train_file {train.source} is SQuAD {train.version}, squad.dev_file {dev.source} is SQuAD "
      f"{dev.version} (2.0 says which questions are impossible); give two files of one version"
    )
  return train, dev


def check(train_file: str, dev_file: str, directory: str, *, download: bool = False) -> None:
  """Looks for both files and opens none; arguments and errors as of `read`."""
  _readers(train_file, dev_file, directory, download=download)


def _readers(
  train_file: str, dev_file: str, directory: str, *, download: bool
) -> list[Callable[[], SquadFile]]:
  names = {"squad.train_file": train_file, "squad.dev_file": dev_file}
  return [_reader(field, name, directory, download=download) for field, name in names.items()]


def _reader(field: str, name: str, directory: str, *, download: bool) -> Callable[[], SquadFile]:
  """Finds a file and returns the function that reads it."""
  asked = pathlib.Path(name).expanduser()
  paths = [*([pathlib.Path(directory).expanduser() / asked] if directory else []), asked]
  looked = [path for plain in dict.fromkeys(paths) for path in (plain, plain.with_name(f"{plain.name}.gz"))]
  for path in looked:
    if path.is_file():
      return lambda: squad.read(path)
  official = _OFFICIAL_NAME.fullmatch(name)
  searched = [str(path) for path in looked]
  help_text = f"name the file with --config.{field}=FILE, or its folder with --config.data.directory=DIR"
  if official:
    split, version = official.groups()
    if download or tfds_reader.find(directory, f"squad/v{version}"):
      return lambda: squad.read_tfds(directory, version, split, download=download)
    searched.append(f"TFDS's squad/v{version} in {tfds_reader.place(directory)}")
    help_text += ", or let TFDS download it with --download"
  raise DataError(f"{field}={name!r}: none of {', '.join(searched)} is there; {help_text}")
