"""Evaluations of runs that share a program, and each run's parameters at its best one."""

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
  """When a run is evaluated and when it ends."""

  num_steps: int  # updates of a run
  evaluate_at: tuple[int, ...]  # increasing numbers of updates; the last is `num_steps`
  steps_per_epoch: int  # by which the epoch of an evaluation is computed


@dataclasses.dataclass
class Evaluations(Listener):
  """Evaluates every run at given steps, unless somebody asks for a stop."""

  group: RunGroup
  evaluate: Callable[[OutputsOf], list[dict[str, float]]]  # as of `loop.train`
  schedule: Schedule
  metric: str  # by which the best evaluation is chosen
  logs: Logs
  heed_stop: Callable[[], None]  # raises if somebody asked, before every batch
  best: Any  # parameters of each run at its best evaluation, on the devices
  of_runs: list[list[dict]]  # of each run in order, with the fields of `summary.Evaluation`

  def acts(self, step: int, total: int) -> bool:
    """Whether the state after `step` updates is still to be evaluated; see `Listener.acts`."""
    last = self.of_runs[0][-1]["step"] if self.of_runs[0] else 0
    return step in self.schedule.evaluate_at and last < step

  def after(self, step: int, state: Any) -> None:
    """Evaluates every run, and keeps the parameters of those that were never better; see `Listener.after`."""

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
    """The evaluations so far; see `Listener.saving`."""
    return {"evaluations": self.of_runs}


def _best(evaluations: Sequence[dict], metric: str) -> dict | None:
  """The evaluation with the highest metric, the first of equal ones; None of none."""
  return max(evaluations, key=lambda one: one["metrics"][metric], default=None)
