"""Checks the files and folders of a run before text is prepared, which may take hours."""

import contextlib
import importlib
from pathlib import Path

import jax

from data.errors import ConfigError
from data.files import make_writable
from data.prepare.output_directory import missing_directories
from pretrain.checkpoints.warm_start import Origins
from pretrain.logs import trackers
from pretrain.settings.run import TrainFields

PROBING = "lab.analysis.probing"  # imported by name: the product must not depend on the lab


def check(origins: Origins, train: TrainFields, workdir: str, *, is_new: bool) -> None:
  """Checks a new run's initial checkpoints, the trackers, the probe data, and that the workdir is writable.

  It leaves no file in the workdir. ConfigError: a tracker is not installed, or several processes would probe.
  DataError: a checkpoint of a new run, or the probe data, is missing. StorageError: the workdir cannot be
  made or written.
  """
  if is_new:
    _ = origins.paths
  trackers.check(train.trackers)
  if train.probe_every:
    if jax.process_count() > 1:
      raise ConfigError(
        f"train.probe_every={train.probe_every}: only for runs of one process; probe the checkpoints\n"
        "  --config.train.probe_every=0\n  python -m pretrain.probe --checkpoint=WORKDIR --data=FOLDER"
      )
    importlib.import_module(PROBING).during_training(train.probe_data)
  if jax.process_index() == 0:  # one process only: it removes the folders that it made
    _check_writable(Path(workdir).absolute())


def _check_writable(workdir: Path) -> None:
  missing = missing_directories(workdir)
  try:
    make_writable(workdir, flag="--workdir")
  finally:
    for directory in missing:
      with contextlib.suppress(OSError):
        directory.rmdir()
