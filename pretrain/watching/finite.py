"""Stops a run whose updates are not finite."""

from typing import Any

from data.errors import DivergedError
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.listener import Figures, Listener
from pretrain.reading.batches import Batches
from pretrain.run import Run
from pretrain.watching import diagnosis


class Finite(Listener):
  """Raises DivergedError, with a diagnosis, after `train.max_nonfinite_steps` non-finite updates in a row."""

  def __init__(self, run: Run, batches: Batches, checkpoints: Checkpoints, workdir: str) -> None:
    """Prepares to diagnose a divergence in `workdir`; `batches` then return the last batch again."""
    self._run, self._batches, self._checkpoints, self._workdir = run, batches, checkpoints, workdir

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Raises DivergedError after too many non-finite updates in a row; see `Listener.seen`."""
    in_a_row = int(figures["skipped_in_a_row"][0])
    if in_a_row < self._run.config.train.max_nonfinite_steps:
      return
    latest = self._checkpoints.latest_step()
    ids, examples = self._batches.again(step - 1)
    cause = diagnosis.write(self._run, state, ids, step=step, examples=examples, workdir=self._workdir)
    raise DivergedError(
      f"loss or gradients were not finite for {in_a_row} steps in a row up to step {step:,}; none of "
      f"those updates was applied; begin a new run with a lower optimizer.learning_rate or more warmup_steps "
      f"(last checkpoint: {'none' if latest is None else f'step {latest:,}'}; {cause})\n"
      f"  --workdir=NEW --config.optimizer.learning_rate={self._run.config.optimizer.learning_rate / 2:g}"
    )
