"""Pre-flight checks: can the run read and write where it must? Made before hours of preparing text."""

import contextlib
import importlib
from pathlib import Path

import jax

from data.files import make_writable
from data.prepare.output_directory import missing_directories
from pretrain.checkpoints.warm_start import Origins
from pretrain.logs import trackers
from pretrain.settings.run import TrainFields

PROBING = "lab.analysis.probing"  # found by name: the lab rests on the product, not the product on the lab


def check(origins: Origins, train: TrainFields, workdir: str, *, is_new: bool) -> None:
  """Looks for the checkpoints a new run starts from, and whether its workdir can be written.

  Nothing is left in the workdir. ConfigError: a tracker is not installed. DataError: a checkpoint is not
  there, where the run is new, or there is nothing to probe with. StorageError: the workdir cannot be made or
  written.
  """
  if is_new:
    _ = origins.paths
  trackers.check(train.trackers)
  if train.probe_every:
    importlib.import_module(PROBING).find(train.probe_data)
  if jax.process_index() == 0:  # what one process makes and takes away again, another could miss
    _check_writable(Path(workdir).absolute())


def _check_writable(workdir: Path) -> None:
  missing = missing_directories(workdir)
  try:
    make_writable(workdir, flag="--workdir")
  finally:
    for directory in missing:
      with contextlib.suppress(OSError):
        directory.rmdir()
