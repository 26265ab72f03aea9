"""Evaluates runs that share a program, and keeps each run's parameters at its best evaluation."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from finetune.search.logs import Logs
from finetune.search.program import Batch, OutputsOf, RunGroup
from pretrain.listener import Listener


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The steps after which a run is evaluated; the last of them ends the run."""

  num_steps: int  # updates of a run
  evaluate_at: tuple[int, ...]  # increasing numbers of updates; the last is `num_steps`
  steps_per_epoch: int  # to compute the epoch of an evaluation


@dataclasses.dataclass
class Evaluations(Listener):
  """Evaluates every run at the steps of a schedule, until a stop is requested."""

  group: RunGroup
  evaluate: Callable[[OutputsOf], list[dict[str, float]]]  # as of `loop.train`
  schedule: Schedule
  metric: str  # by which the best evaluation is chosen
  logs: Logs
  heed_stop: Callable[[], None]  # called before every batch; raises if a stop was requested
  best: Any  # parameters of each run at its best evaluation, on the devices
  of_runs: list[list[dict]]  # of each run in order, with the fields of `summary.Evaluation`

  def acts(self, step: int, total: int) -> bool:
    """Returns whether an evaluation is due after `step` updates; see `Listener.acts`."""
    last = self.of_runs[0][-1]["step"] if self.of_runs[0] else 0
    return step in self.schedule.evaluate_at and last < step

  def after(self, step: int, state: Any) -> None:
    """Evaluates every run; keeps the parameters of those with a new best score. See `Listener.after`."""

    def outputs_of(batch: Batch) -> Any:
      self.heed_stop()
      if self.group.is_new("outputs", batch):
        self.logs.compiling("an evaluation", batch)
      return self.group.outputs(state.params, batch)

    scores = self.evaluate(outputs_of)
    self.logs.evaluation(step, scores, self.metric)
    before = [_best(run, self.metric) for run in self.of_runs]
    where = {"step": step, "epoch": round(step / self.schedule.steps_per_epoch, 4)}
    skipped = np.asarray(jax.device_get(state.skipped))[: len(scores)].tolist()
    for run, metrics, count in zip(self.of_runs, scores, skipped, strict=True):
      run.append(where | {"metrics": metrics, "skipped_updates": count})
    better = [
      old is None or new[self.metric] > old["metrics"][self.metric] for old, new in zip(before, scores)
    ]
    self.best = self.group.better(self.best, state.params, np.asarray(better))

  def saving(self, step: int) -> dict[str, Any]:
    """Returns the evaluations so far, which a saved state stores; see `Listener.saving`."""
    return {"evaluations": self.of_runs}


def _best(evaluations: Sequence[dict], metric: str) -> dict | None:
  """Returns the first evaluation with the highest metric; None if there are no evaluations."""
  return max(evaluations, key=lambda one: one["metrics"][metric], default=None)
