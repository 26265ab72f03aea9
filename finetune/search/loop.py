"""The training loop of fine-tuning: R runs side by side; a run's score is that of its best evaluation.

The state is saved from time to time, and a killed run resumes from it exactly: examples, dropout and shapes
are functions of the step.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from data import progress
from data.errors import DataError
from finetune.search.evaluations import Evaluations, Schedule
from finetune.search.logs import Logs
from finetune.search.program import Batch, OutputsOf, RunGroup
from pretrain.checkpoints.checkpoint import Checkpoints, read_meta, step_path
from pretrain.checkpoints.resume import newest_good_step
from pretrain.listener import Listener
from pretrain.logs.intervals import Progress
from pretrain.mesh import devices
from pretrain.step import Metrics, TrainState
from pretrain.stop import StopRequest

logger = logging.getLogger(__name__)


class Stopped(Exception):
  """Raised after a stop request; the state is saved if `train` was called with a `Saving`."""


@dataclasses.dataclass
class Outcome:
  """The evaluations of a group of runs, and the parameters at each run's best evaluation."""

  evaluations: list[list[dict]]  # of each run in order, with the fields of `summary.Evaluation`
  best_params: Any  # [runs or more, ...] at each run's best evaluation, on the devices


@dataclasses.dataclass(frozen=True)
class Saving:
  """Where, and how often, the state of an unfinished group of runs is saved."""

  directory: Path  # of this group alone; removed by the caller when its results are stored
  identity: dict  # JSON values that a saved state must have been written under
  seconds: float  # between saves; 0: one at every evaluation


def train(
  group: RunGroup,
  feed: Callable[[int], Batch],
  evaluate: Callable[[OutputsOf], list[dict[str, float]]],
  schedule: Schedule,
  *,
  metric: str,
  stop: StopRequest,
  saving: Saving | None = None,
  logs: Sequence[Path] = (),
  label: str = "",
  show_progress: bool = False,
) -> Outcome:
  """Trains all runs of a group to the end, from the start or from a saved state.

  Args:
    feed: step from 0 to host arrays [runs, batch, ...], a pure function.
    evaluate: gets a function from a host batch [runs, batch, ...] to host outputs; returns metrics by run.
    metric: a run's best evaluation is the first with the highest value of it.
    stop: checked after every step and before every batch of an evaluation, which is repeated on resume.
    saving: None: nothing is saved, and an interrupted program starts over.
    logs: a directory for each run's metrics; none: they are not written.
    show_progress: whether a bar is shown; without one losses and evaluations are logged.

  Raises:
    Stopped: a stop was requested, maybe during an evaluation; the state is saved if `saving` is given.
    ConfigError: the runs do not fit into memory.
    DataError: the saved state belongs to other runs.
    StorageError: the state cannot be saved.
  """

  def memory_line(reason: str) -> str:
    count = group.runs.count
    fewer = f"\n  --config.train.runs_at_once={count // 2}" if count > 1 else ""
    return (
      f"{label}: not enough memory for {count} run{'s' if count > 1 else ''} in a program ({reason}); use "
      f"{'fewer runs or ' if fewer else ''}more microbatches:{fewer}\n  --config.train.microbatches=2"
    )

  def heed_stop() -> None:
    if stop.is_set:
      raise Stopped

  total = schedule.num_steps
  with devices.memory_errors(memory_line), contextlib.ExitStack() as ending:
    checkpoints = Checkpoints(saving.directory, every=1, keep=1) if saving else None
    if checkpoints is not None:
      ending.callback(checkpoints.close)
    saved: dict[str, Any] = {}
    if saving and checkpoints and newest_good_step(saving.directory) is not None:
      state, best, saved = _restore(group, checkpoints, saving)
    else:
      state = group.init_state()
      best = jax.tree.map(jnp.copy, state.params)  # the step donates its state
    first = saved.get("step", 0)
    written = Logs(logs, saved, done=first, total=total, label=label, has_lines=not show_progress)
    of_runs = saved.get("evaluations", [[] for _ in range(group.runs.count)])
    evaluations = Evaluations(group, evaluate, schedule, metric, written, heed_stop, best, of_runs)
    bar = progress.bar("step", is_shown=show_progress, total=total, initial=first, desc=label, leave=False)
    loop = _Loop(evaluations, (Progress(bar), written, evaluations), total, saving, checkpoints, state, first)
    for listener in loop.table:
      ending.callback(listener.end)
    try:
      loop.act()  # an earlier start may have stopped between its last step and the evaluation of that step
      while loop.done < total:
        batch = feed(loop.done)
        if group.is_new("step", batch):
          written.compiling("a training step", batch)
        loop.state, metrics = group.train_step(loop.state, batch)
        # One step runs while the next is prepared. With more steps queued, a stop would wait for all of them.
        loop.tell()
        loop.pending, loop.done = metrics, loop.done + 1
        heed_stop()
        loop.save_in_time(is_evaluation=loop.act())
      return Outcome(evaluations.of_runs, evaluations.best)
    except Stopped:
      logger.info(f"  {label}: stop requested at step {loop.done:,}" + ("; saving" if saving else ""))
      loop.save()
      raise


def _restore(
  group: RunGroup, checkpoints: Checkpoints, saving: Saving
) -> tuple[TrainState, Any, dict[str, Any]]:
  """Returns the saved state, best parameters and metadata of runs; DataError if they are of other runs."""
  meta = read_meta(step_path(checkpoints.directory))
  if meta.get("identity") != saving.identity:
    raise DataError(
      f"{checkpoints.directory}: state of other runs; to start over:\n  rm -r {checkpoints.directory}"
    )
  abstract = group.abstract_state()
  restored, _ = checkpoints.restore(abstract._asdict() | {"best": abstract.params})
  best = restored.pop("best")
  return TrainState(**restored), best, meta


@dataclasses.dataclass
class _Loop:
  """The mutable state of the loop: training state, updates done, and figures not yet sent to listeners."""

  evaluations: Evaluations
  table: Sequence[Listener]  # with the evaluations
  total: int  # updates
  saving: Saving | None
  checkpoints: Checkpoints | None
  state: TrainState
  done: int  # updates
  pending: Metrics | None = None  # of the step that may still be running
  saved_at: float = dataclasses.field(default_factory=time.monotonic)

  def tell(self) -> None:
    """Waits for the running update, and passes its loss and other figures to all listeners."""
    if self.pending is not None:
      figures, self.pending = jax.device_get(self.pending), None
      for listener in self.table:
        listener.seen(self.done, figures, self.state)

  def act(self) -> bool:
    """Calls the listeners that act after this step, such as the evaluation; returns whether any did."""
    due = [listener for listener in self.table if listener.acts(self.done, self.total)]
    if due:
      self.tell()
    for listener in due:
      listener.after(self.done, self.state)
    return bool(due)

  def save(self) -> None:
    """Saves the state, unless saving is off or the runs are finished."""
    is_finished = self.done == self.total and not self.evaluations.acts(self.done, self.total)
    if self.checkpoints is None or self.saving is None or is_finished:
      return
    self.tell()
    meta: dict[str, Any] = {"identity": self.saving.identity}
    for listener in self.table:
      meta |= listener.saving(self.done)
    state = self.state._asdict() | {"best": self.evaluations.best}
    self.checkpoints.save(self.done, state, meta, force=True)
    self.saved_at = time.monotonic()

  def save_in_time(self, *, is_evaluation: bool) -> None:
    """Saves the state if `Saving.seconds` have passed since the last save."""
    if self.saving is None or not (is_evaluation or self.saving.seconds):
      return
    if time.monotonic() - self.saved_at >= self.saving.seconds:
      self.save()
