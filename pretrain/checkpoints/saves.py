"""Saves that go on behind the loop: whether one has failed, and whether one is whole."""

import os
from typing import Any

from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.listener import Figures, Listener


class Saves(Listener):
  """Raises the StorageError of a save that failed; notes in the workdir, once, that one is whole."""

  def __init__(self, checkpoints: Checkpoints, workdir: str | os.PathLike) -> None:
    """`checkpoints` are those of `workdir`."""
    self._checkpoints, self._workdir, self._is_noted = checkpoints, workdir, False

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """See `Listener.seen`."""
    self._checkpoints.check()
    self.end()

  def end(self) -> None:
    """See `Listener.end`."""
    if not self._is_noted and self._checkpoints.has_committed:
      workdir_files.note_saved(self._workdir)
      self._is_noted = True
