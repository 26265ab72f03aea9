"""The loop of fine-tuning: R runs step by step, evaluated at given steps, each judged by its best evaluation.

What a long search has done is saved from time to time, so a killed one goes on from there, exactly: examples,
dropout and shapes are functions of the step.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from data import progress
from data.errors import DataError
from finetune.search.logs import Logs
from finetune.search.program import Batch, RunGroup
from pretrain.checkpoints.checkpoint import Checkpoints, read_meta, step_path
from pretrain.checkpoints.resume import newest_good_step
from pretrain.mesh import devices
from pretrain.pod.stop import StopRequest
from pretrain.step import Metrics, TrainState

logger = logging.getLogger(__name__)

Evaluate = Callable[[Callable[[Batch], Any]], list[dict[str, float]]]


class Stopped(Exception):
  """Somebody asked for a stop. What was done is saved, if the caller named a place for it."""


@dataclasses.dataclass(frozen=True)
class Schedule:
  """When a run is evaluated and when it ends."""

  num_steps: int  # updates of a run
  evaluate_at: tuple[int, ...]  # increasing numbers of updates; the last is `num_steps`
  steps_per_epoch: int  # by which the epoch of an evaluation is computed


@dataclasses.dataclass
class Outcome:
  """What the runs of a group came to."""

  evaluations: list[list[dict]]  # of each run in order, with the fields of `summary.Evaluation`
  best_params: Any  # [runs or more, ...] at each run's best evaluation, on the devices


@dataclasses.dataclass(frozen=True)
class Saving:
  """Where the state of an unfinished group is kept, and how often."""

  directory: Path  # of this group alone; removed by the caller when its results are stored
  identity: dict  # JSON values that a saved state must have been written under
  seconds: float  # between saves; 0: one at every evaluation


def train(
  group: RunGroup,
  feed: Callable[[int], Batch],
  evaluate: Evaluate,
  schedule: Schedule,
  *,
  metric: str,
  stop: StopRequest,
  saving: Saving | None = None,
  logs: Sequence[Path] = (),
  label: str = "",
  show_progress: bool = False,
) -> Outcome:
  """Trains all runs of a group to the end, from the beginning or from what was saved.

  Args:
    feed: step from 0 to host arrays [runs, batch, ...], a pure function.
    evaluate: gets a function from a host batch [runs, batch, ...] to host outputs; returns metrics by run.
    metric: by which a run's best evaluation is chosen: the highest, the first of equals.
    stop: asked after every step and before every batch of an evaluation, which is then done again later.
    saving: None: an interrupted program starts over.
    logs: a directory for each run's metrics; none: they are not written.
    show_progress: whether a bar is shown; without one losses and evaluations are logged.

  Raises:
    Stopped: as asked, also in the middle of an evaluation; after a save if there is a place for it.
    ConfigError: the runs do not fit the memory.
    DataError: the saved state is of other runs.
    StorageError: the state cannot be saved.
  """

  def memory_line(reason: str) -> str:
    count = group.runs.count
    fewer = f"fewer runs in a program, --config.train.runs_at_once={count // 2}, or " if count > 1 else ""
    return (
      f"{label}: not enough memory for {count} run{'s' if count > 1 else ''} in a program ({reason}); use "
      f"{fewer}smaller parts of a batch, --config.train.microbatches=2 or more"
    )

  with devices.memory_errors(memory_line):
    checkpoints = Checkpoints(saving.directory, every=1, keep=1) if saving else None
    if saving and checkpoints and newest_good_step(saving.directory) is not None:
      start = _restore(group, checkpoints, saving)
    else:
      state = group.init_state()
      # A copy: the step donates its state.
      start = state, jax.tree.map(jnp.copy, state.params), 0, [[] for _ in range(group.runs.count)]
    loop = _Loop(group, evaluate, schedule, metric, stop, saving, checkpoints, *start)
    loop.logs = Logs(logs, done=loop.done, total=schedule.num_steps, label=label, has_lines=not show_progress)
    bar = progress.bar(
      "step", is_shown=show_progress, total=schedule.num_steps, initial=loop.done, desc=label, leave=False
    )
    try:
      while not loop.is_finished:
        if not loop.is_due:  # a stop may have come after the last step, before its evaluation
          batch = feed(loop.done)
          loop.note_compiling("step", "a training step", batch)
          loop.state, metrics = group.train_step(loop.state, batch)
          loop.note_step(metrics, bar)
        loop.heed_stop()
        if is_evaluation := loop.is_due:
          loop.note_evaluation()
        loop.save_in_time(is_evaluation=is_evaluation)
      return Outcome(loop.evaluations, loop.best)
    except Stopped:
      logger.info(f"  {label}: a stop was asked for at step {loop.done:,}" + (", saving" if saving else ""))
      loop.save()
      raise
    finally:
      bar.close()
      loop.close()


def _restore(
  group: RunGroup, checkpoints: Checkpoints, saving: Saving
) -> tuple[TrainState, Any, int, list[list[dict]]]:
  meta = read_meta(step_path(checkpoints.directory))
  if meta.get("identity") != saving.identity:
    raise DataError(
      f"{checkpoints.directory} holds the state of other runs; remove it to start this one over"
    )
  abstract = group.abstract_state()
  restored, _ = checkpoints.restore(abstract._asdict() | {"best": abstract.params})
  best = restored.pop("best")
  return TrainState(**restored), best, meta["step"], meta["evaluations"]


@dataclasses.dataclass
class _Loop:
  """What changes while a group runs: its state, the updates done, the evaluations and the best parameters."""

  group: RunGroup
  evaluate: Evaluate
  schedule: Schedule
  metric: str
  stop: StopRequest
  saving: Saving | None
  checkpoints: Checkpoints | None
  state: TrainState
  best: Any  # parameters as in `Outcome.best_params`
  done: int  # updates
  evaluations: list[list[dict]]  # as in `Outcome`
  logs: Logs = dataclasses.field(default_factory=lambda: Logs((), done=0, total=0, label="", has_lines=False))
  newest: Metrics = dataclasses.field(default_factory=dict)  # of the step that may still be running
  saved_at: float = dataclasses.field(default_factory=time.monotonic)

  @property
  def is_due(self) -> bool:
    """Whether the state as it is now is to be evaluated still."""
    last = self.evaluations[0][-1]["step"] if self.evaluations[0] else 0
    return self.done in self.schedule.evaluate_at and last < self.done

  @property
  def is_finished(self) -> bool:
    """Whether nothing is left to do."""
    return self.done == self.schedule.num_steps and not self.is_due

  def note_step(self, metrics: Metrics, bar: tqdm) -> None:
    """Counts an update, and waits for the one before it; the loss is shown before an evaluation."""
    self._wait()
    self.newest = metrics
    self.done += 1
    bar.update(1)
    if self.is_due:
      bar.set_postfix_str(f"loss {float(np.mean(metrics['loss'][0])):.4g}", refresh=False)

  def _wait(self) -> None:
    """Waits for the step that runs, and logs it."""
    # One step runs while the next is prepared. With more of them in the queue a stop would wait for them all.
    jax.block_until_ready(self.newest)
    if self.newest:
      self.logs.step(self.done, self.newest)
    self.newest = {}

  def note_compiling(self, function: str, what: str, batch: Batch) -> None:
    """Says that a function of the group is going to be compiled for a batch, if it is."""
    if self.group.is_new(function, batch):
      self.logs.compiling(what, batch)

  def heed_stop(self) -> None:
    """Raises Stopped if somebody asked."""
    if self.stop.is_set:
      raise Stopped

  def save(self) -> None:
    """Saves if there is a place for it, and something left to do."""
    if self.checkpoints is None or self.saving is None or self.is_finished:
      return
    state = self.state._asdict() | {"best": self.best}
    meta = {"identity": self.saving.identity, "evaluations": self.evaluations}
    self.checkpoints.save(self.done, state, meta, force=True)
    self.saved_at = time.monotonic()

  def save_in_time(self, *, is_evaluation: bool) -> None:
    """Saves if it is time."""
    if self.saving is None or not (is_evaluation or self.saving.seconds):
      return
    if time.monotonic() - self.saved_at >= self.saving.seconds:
      self.save()

  def note_evaluation(self) -> None:
    """Evaluates every run here, and keeps the parameters of those that were never better."""

    def outputs_of(batch: Batch) -> Any:
      self.heed_stop()
      self.note_compiling("outputs", "an evaluation", batch)
      return self.group.outputs(self.state.params, batch)

    self._wait()
    scores = self.evaluate(outputs_of)
    self.logs.evaluation(self.done, scores, self.metric)
    before = [_best(run, self.metric) for run in self.evaluations]
    epoch = self.done / self.schedule.steps_per_epoch
    skipped = np.asarray(jax.device_get(self.state.skipped))[: len(scores)].tolist()
    for run, metrics, count in zip(self.evaluations, scores, skipped, strict=True):
      where = {"step": self.done, "epoch": round(epoch, 4)}
      run.append(where | {"metrics": metrics, "skipped_updates": count})
    better = [
      old is None or new[self.metric] > old["metrics"][self.metric] for old, new in zip(before, scores)
    ]
    self.best = self.group.better(self.best, self.state.params, np.asarray(better))

  def close(self) -> None:
    self.logs.close()
    if self.checkpoints is not None:
      self.checkpoints.close()


def _best(evaluations: Sequence[dict], metric: str) -> dict | None:
  """The evaluation with the highest metric, the first of equal ones; None of none."""
  return max(evaluations, key=lambda one: one["metrics"][metric], default=None)
