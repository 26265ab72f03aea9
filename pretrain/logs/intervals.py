"""Listeners that log at intervals: means of training metrics, speed, a progress bar, and probe scores."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from tqdm import tqdm

from data import progress
from pretrain.corruption import generator
from pretrain.listener import Figures, Listener
from pretrain.logs.metrics import Throughput, reduce_metrics
from pretrain.logs.trackers import Written
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


class Progress(Listener):
  """Advances the bar, and shows the loss and the speed."""

  def __init__(self, bar: tqdm, tokens_before: Callable[[int], int] | None = None) -> None:
    """`tokens_before` returns the tokens of the batches before a step; None: no speed is shown."""
    self._bar, self._tokens_before = bar, tokens_before

  def seen(self, step: int, figures: Mapping[str, Any], state: Any) -> None:
    """Shows the loss; see `Listener.seen`."""
    self._bar.update(1)
    shown = f"loss {float(figures['loss'][0]):.4g}"
    if self._tokens_before:
      tokens = self._tokens_before(step) - self._tokens_before(step - 1)
      shown += f", {(self._bar.format_dict['rate'] or 0.0) * tokens:,.0f} tokens/s"
    self._bar.set_postfix_str(shown, refresh=False)

  def end(self) -> None:
    """Closes the bar; see `Listener.end`."""
    self._bar.close()


class Probes(Listener):
  """Writes probe metrics every `train.probe_every` steps, unless a stop is requested."""

  def __init__(
    self,
    probing: Any,
    first: int,
    every: int,
    written: Written,
    speed: Throughput,
    is_stopping: Callable[[int], bool],
  ) -> None:
    """`probing` measures host parameters: (params, is_stopping=) -> {metric: value}, or None if stopped."""
    self.every = every
    is_due = first % every == 0 and not (first and "probe" in written.kinds)
    self._is_done_at = None if is_due else first
    self._probing, self._written, self._speed = probing, written, speed
    self._is_stopping = is_stopping

  def after(self, step: int, state: Any) -> None:
    """Runs the probes after a step and writes their scores; see `Listener.after`."""
    if step == self._is_done_at:
      return
    params = generator.joined_tables(jax.device_get(state.params))
    figures = self._probing.measure(params, is_stopping=lambda: self._is_stopping(step))
    if figures is not None:
      self._written.write(step, figures)
      logger.info(f"probes at step {step:,}, figures measured: {len(figures)}")
      self._speed.restart(step)
