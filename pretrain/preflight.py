"""The places a run is to read from and write to, looked at before hours of preparing text."""

import contextlib
import os
from pathlib import Path

import jax
from ml_collections import ConfigDict

from data.errors import DataError
from data.files import make_writable
from data.prepare.output_directory import missing_directories
from pretrain import checkpoint, provenance


def newest_step(workdir: str | os.PathLike) -> int | None:
  """The newest step that was saved whole in a workdir, which need not exist; None if there is none."""
  steps = checkpoint.saved_steps(Path(workdir).absolute() / checkpoint.DIRECTORY)
  return steps[-1] if steps else None


def check(config: ConfigDict, workdir: str) -> None:
  """Looks for the checkpoints a new run starts from, and whether its workdir can be written.

  Args:
    config: validated config.
    workdir: of the run; nothing is left in it.

  Raises:
    DataError: a checkpoint that the config names is not there; a run that goes on needs none.
    StorageError: the workdir cannot be made or written.
  """
  if newest_step(workdir) is None:
    for field, path in provenance.starts(config.to_dict()).items():
      try:
        checkpoint.step_path(path)
      except DataError as error:
        raise DataError(f"{field}={path}: {error}") from error
  if jax.process_index() == 0:  # what one process makes and takes away again, another could miss
    _check_writable(Path(workdir).absolute())


def _check_writable(workdir: Path) -> None:
  missing = missing_directories(workdir)
  try:
    make_writable(workdir)
  finally:
    for directory in missing:
      with contextlib.suppress(OSError):
        directory.rmdir()
