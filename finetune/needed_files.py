"""Finds the data that a config needs, before JAX is imported or a checkpoint read; reads SQuAD."""

import pathlib
import re
from collections.abc import Callable
from typing import Any

from data import files, glue, squad, tfds_reader
from data.errors import DataError
from data.glue import kshot
from data.glue.tasks import TASKS
from data.rows import datasets
from data.squad import SquadFile
from finetune import validate
from pretrain.settings import fields

_OFFICIAL_NAME = re.compile(r"(train|dev)-v(1\.1|2\.0)\.json(?:\.gz)?")


def read_squad(
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


def check_squad(
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


DRAWS = "no folder of LM-BFF's draws (DIR/MNLI/16-13/train.tsv) is set; {}\n  --config.prompt.directory=DIR"

# Skipped with a log line if they are missing: a subset of MNLI has only one development set.
OPTIONAL = frozenset({"dev_mismatched"})


def check(config: Any, *, download: bool) -> None:
  """Checks that the training and development sets of every task exist, without opening them.

  Test sets may be missing: their predictions are skipped with a log line.

  Raises:
    DataError: a set is missing; the message has the searched paths, flags, and a missing checkpoint's path.
  """
  try:
    _check_data(config, download=download)
  except DataError as error:
    path = str(config.checkpoint)
    if path and not (files.is_address(path) or pathlib.Path(path).exists()):
      raise DataError(f"--config.checkpoint={path} does not exist, and {error}") from error
    raise


def _check_data(config: Any, *, download: bool) -> None:
  directory = config.data.directory
  names = validate.task_names(fields.flatten(config))
  if config.kind == "glue":
    needed = {name: [split for split in TASKS[name].sizes if not split.startswith("test")] for name in names}
    wanted = [(name, split) for name in names for split in needed[name] if split not in OPTIONAL]
    glue.check(directory, wanted, download=download)
  elif config.kind in ("own", "embedding"):
    for field in ("train_file", "dev_file"):
      path = config.data[field]
      if datasets.kind_of(path):
        datasets.check(path, directory=directory, download=download)
      elif path and not pathlib.Path(path).is_file():
        is_folder = pathlib.Path(path).is_dir()
        found = (
          "this is a folder; name a file in it" if is_folder else "there is no such file; give its full path"
        )
        raise DataError(f"data.{field}={path}: {found} (tfds:NAME and seqio:TASK are data sets)")
  elif config.kind == "squad":
    # `main` passes a user's own files of questions on to this kind.
    group, asked = "data" if config.data.train_file else "squad", config.squad
    check_squad(asked.train_file, asked.dev_file, directory, group=group, download=download)
  elif config.kind == "prompt" and config.prompt.directory:
    kshot.check(config.prompt.directory, names, k=config.prompt.shots, seeds=config.prompt.splits)
  elif config.kind == "prompt":
    try:
      glue.check(directory, [(name, "train") for name in names], download=download)
    except DataError as error:
      raise DataError(DRAWS.format(error)) from error
