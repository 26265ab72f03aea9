"""Averages training metrics over each logging interval, and measures the speed."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from data import progress
from pretrain.listener import Figures, Listener
from pretrain.logs.metrics import Throughput, reduce_metrics
from pretrain.logs.written import Written
from pretrain.run import Run

logger = logging.getLogger(__name__)

COUNTED = ("loss_spikes",)  # numbers in the interval, not means
LAST = ("skipped_updates", "skipped_in_a_row", "learning_rate")  # of the interval's last update, not means


class Intervals(Listener):
  """Writes means of metrics every `train.log_every` steps, and a log line if there is no progress bar."""

  def __init__(
    self,
    run: Run,
    saved: Mapping[str, Any],
    written: Written,
    speed: Throughput,
    has_lines: bool,
  ) -> None:
    """Continues with the sums of an unfinished interval from the checkpoint's meta `saved`."""
    self.every = run.config.train.log_every
    self._run, self._written, self._speed = run, written, speed
    self._has_lines, self._compiled = has_lines, -1  # the step whose program was compiled
    self._skipped = 0  # updates of the interval that were not applied
    self._sums: Figures = {
      name: (total, weight) for name, (total, weight) in saved.get("interval_sums", {}).items()
    }

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Adds the figures of an update to sums; at the end of an interval writes them; see `Listener.seen`."""
    is_skipped = figures["skipped_in_a_row"][0] > 0
    self._skipped += is_skipped
    for name, (total, weight) in figures.items():
      if is_skipped and name not in COUNTED:
        continue  # of an update that was not applied: its loss may be NaN
      before = self._sums.get(name, (0.0, 0.0))
      self._sums[name] = (before[0] + total, 1.0 if name in COUNTED else before[1] + weight)
    if self._compiled < 0:  # the first step has been computed by now
      self._speed.restart(step)
      self._compiled = step
    total = self._run.config.train.total_steps
    if step % self.every and step != total:
      return
    values = {f"train/{name}": value for name, value in reduce_metrics(self._sums).items()}
    speed = self._speed.measure(step)
    # The next step was computed while the first was awaited: its time alone is no speed.
    speed = {} if step == self._compiled + 1 else speed
    values |= {f"train/{name}": figures[name][0] for name in LAST} | speed
    self._written.write(step, values)
    if self._has_lines:
      logger.info(self._line(step, values))
    self._sums, self._skipped = {}, 0

  def _line(self, step: int, values: dict[str, float]) -> str:
    """Returns the log line of a step: loss, terms and, from the second interval on, speed and time left."""
    total = self._run.config.train.total_steps
    fields = [f"step {step:,}/{total:,}", f"loss {values.get('train/loss', math.nan):.4f}"]
    fields += [
      f"{name} {values['train/' + name]:.4f}"
      for name in self._run.recipe.term_weights
      if f"train/{name}" in values
    ]
    tokens = values.get("perf/tokens_per_second")
    if tokens:
      seconds = (total - step) / values["perf/steps_per_second"]
      fields += [f"{tokens:,.0f} tokens/s", f"{progress.duration(seconds)} left"]
    if self._skipped:
      fields.append(f"skipped updates that were not finite: {self._skipped:,}")
    return "  ".join(fields)

  def saving(self, step: int) -> dict[str, Any]:
    """Returns the sums of the unfinished interval; see `Listener.saving`."""
    return {"interval_sums": {name: list(pair) for name, pair in self._sums.items()}}
