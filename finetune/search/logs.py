"""Logs of runs while they train: a metrics file and TensorBoard events for each run, and log lines.

A logged loss is the mean over the steps since the last entry.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.progress import SECONDS_BETWEEN_LINES
from pretrain.listener import Listener
from pretrain.logs.metrics import MetricWriter

logger = logging.getLogger(__name__)

_ENTRIES = 200  # of a run, at most, besides its evaluations
_LOGGED = ("loss", "learning_rate", "grad_norm")


class Logs(Listener):
  """The metrics files, TensorBoard events and log lines of runs that share a program."""

  def __init__(
    self,
    directories: Sequence[Path],
    saved: Mapping[str, Any],
    *,
    done: int,
    total: int,
    label: str,
    has_lines: bool,
  ) -> None:
    """Opens the files, and removes entries of an earlier start after `done` updates.

    Args:
      directories: one for each run; none: nothing is written.
      saved: meta of the saved state from which the runs continue; {}: new runs.
      total: updates of a run.
      has_lines: whether progress is also logged as lines.

    Raises:
      StorageError: a file cannot be written.
    """
    self._writers = [MetricWriter(directory, step=done) for directory in directories]
    self._total, self._label, self._has_lines = total, label, has_lines
    self._every = max(total // _ENTRIES, 1)
    self._said = self._before = time.monotonic()
    self._took: list[float] = []  # seconds of steps for which nothing was compiled
    self._is_compiling = False
    # [runs] losses of the steps since the last entry
    self._sums = [np.asarray(losses, np.float32) for losses in saved.get("interval_losses", [])]

  def seen(self, step: int, figures: Mapping[str, Any], state: Any) -> None:
    """Writes a step's loss and learning rate to the logs if an entry is due; see `Listener.seen`."""
    logged = {name: np.asarray(figures[name][0]) for name in _LOGGED if name in figures}
    now = time.monotonic()
    if not self._is_compiling:
      self._took.append(now - self._before)
    self._before, self._is_compiling = now, False
    self._sums.append(logged["loss"])
    is_due = step % self._every == 0 or step == self._total
    is_silent = not self._has_lines or time.monotonic() - self._said < SECONDS_BETWEEN_LINES
    if not is_due and is_silent:
      return
    loss = np.mean(self._sums, axis=0)
    if is_due:
      self._sums = []
      for run, writer in enumerate(self._writers):
        values = {name: float(of_runs[run]) for name, of_runs in logged.items()}
        writer.write(step, values | {"loss": float(loss[run])})
    if not is_silent:
      self._said = time.monotonic()
      rate = float(logged["learning_rate"][0])
      logger.info(
        f"  {self._where(step)}: loss {float(np.mean(loss)):.4g}, rate {rate:.2g}{self._left(step)}"
      )

  def evaluation(self, step: int, scores: Sequence[Mapping[str, float]], metric: str) -> None:
    """Writes every run's development scores after `step` updates to its log files."""
    for writer, of_run in zip(self._writers, scores):
      writer.write(step, {f"dev/{name}": value for name, value in of_run.items()})
    if self._has_lines and step < self._total:
      mean = 100 * float(np.mean([of_run[metric] for of_run in scores]))
      runs = f" (mean of {len(scores)} runs)" if len(scores) > 1 else ""
      logger.info(f"  {self._where(step)}: {metric} {mean:.1f}{runs}{self._left(step)}")

  def compiling(self, what: str, batch: Mapping[str, Any]) -> None:
    """Logs that a program for batches [runs, batch, length] is being compiled, which may take minutes."""
    self._is_compiling = True
    if self._has_lines:
      runs, size, length = batch["ids"].shape
      of_runs = f" of {runs} runs" if runs > 1 else ""
      logger.info(f"  {self._label}: compiling {what}{of_runs} on {size} x {length} tokens ...")

  def saving(self, step: int) -> dict[str, Any]:
    """Returns the losses since the last log entry, which a saved state stores; see `Listener.saving`."""
    return {"interval_losses": [losses.tolist() for losses in self._sums]}

  def end(self) -> None:
    """Closes the files; see `Listener.end`."""
    for writer in self._writers:
      writer.close()

  def _where(self, step: int) -> str:
    return f"{self._label} step {step:,}/{self._total:,}"

  def _left(self, step: int) -> str:
    if not self._took:
      return ""
    minutes, rest = divmod(int((self._total - step) * float(np.mean(self._took))), 60)
    return f", {minutes}:{rest:02} left"
