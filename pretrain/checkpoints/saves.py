"""Watches saves in the background: failures, and the first complete checkpoint."""

import os
from typing import Any

from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.listener import Figures, Listener


class Saves(Listener):
  """Raises the StorageError of a failed save, and notes in the workdir the first complete one."""

  def __init__(self, checkpoints: Checkpoints, workdir: str | os.PathLike) -> None:
    """Watches the saves of `checkpoints`, which writes into `workdir`."""
    self._checkpoints, self._workdir, self._is_noted = checkpoints, workdir, False

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Raises the StorageError of a failed save, and notes the first complete one; see `Listener.seen`."""
    self._checkpoints.check()
    self.end()

  def end(self) -> None:
    """Notes in the workdir, once, that the run has a complete checkpoint; see `Listener.end`."""
    if not self._is_noted and self._checkpoints.has_committed:
      workdir_files.note_saved(self._workdir)
      self._is_noted = True
