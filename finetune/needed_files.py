"""Checks that the data of a config exists, before JAX is imported or a checkpoint read. Imports no jax."""

import pathlib
from typing import Any

from data import files, glue
from data.errors import DataError
from data.glue import kshot
from data.glue.tasks import TASKS
from data.rows import datasets
from finetune import validate
from finetune.squad import files as squad_files
from pretrain.command import fields

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
    squad_files.check(asked.train_file, asked.dev_file, directory, group=group, download=download)
  elif config.kind == "prompt" and config.prompt.directory:
    kshot.check(config.prompt.directory, names, k=config.prompt.shots, seeds=config.prompt.splits)
  elif config.kind == "prompt":
    try:
      glue.check(directory, [(name, "train") for name in names], download=download)
    except DataError as error:
      raise DataError(DRAWS.format(error)) from error
