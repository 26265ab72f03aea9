"""A search: every cell of a task with all its seeds, several runs to a program, finished ones never again."""

import dataclasses
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from finetune.papers import protocols
from finetune.papers.spaces import Cell
from finetune.search import loop, sharing, summary
from finetune.search.examples import Buckets, Examples, TrainingOrder, pad
from finetune.search.program import Batch, Program, RunGroup, Runs
from finetune.search.results import Results
from finetune.search.summary import Evaluation, Record
from pretrain.stop import StopRequest

UNFINISHED = "unfinished"  # folder of saved states, in the task's


@dataclasses.dataclass(frozen=True)
class Task:
  """What a search needs to know of a task.

  Attributes:
    name: of its folder.
    metric: by which runs and cells are judged.
    train: the training examples.
    buckets: of them.
    evaluate: (outputs_of, number of runs) to the metrics of each run on the development set.
    pad_id: id of [PAD].
  """

  name: str
  metric: str
  train: Examples
  buckets: Buckets
  evaluate: Callable[[Callable[[Batch], Any], int], list[dict[str, float]]]
  pad_id: int


@dataclasses.dataclass(frozen=True)
class Settings:
  """How a search is carried out.

  Attributes:
    summary: 'median' or 'mean' over seeds.
    evaluations_per_epoch: of the development set.
    shape_seed: of the sequence of padded lengths.
    runs_at_once: most runs in one program.
    save_seconds: between saves of unfinished runs.
    show_progress: whether somebody watches.
  """

  summary: str
  evaluations_per_epoch: int
  shape_seed: int
  runs_at_once: int
  save_seconds: float
  show_progress: bool


@dataclasses.dataclass(frozen=True)
class Trained:
  """One run with its best parameters.

  Attributes:
    record: its evaluations.
    params: {'encoder', 'heads'} host arrays.
    outputs_of: host batch [1, batch, ...] to host outputs with these parameters.
  """

  record: Record
  params: Any
  outputs_of: Callable[[Batch], Any]


class Search:
  """A task's cells."""

  def __init__(
    self,
    task: Task,
    program: Program,
    results: Results,
    settings: Settings,
    *,
    stop: StopRequest,
    say: Callable[[str], None],
  ) -> None:
    """Nothing is trained yet.

    Args:
      task: data and metrics.
      program: its compiled functions.
      results: where finished cells are.
      settings: how it is carried out.
      stop: asked after every step.
      say: takes lines for the user.
    """
    self.task, self.program, self.results, self.settings = task, program, results, settings
    self.stop, self.say = stop, say
    self._kept: _Kept | None = None

  @functools.lru_cache(maxsize=8)  # noqa: B019 (a search lives as long as its program)
  def _order(self, batch_size: int) -> TrainingOrder:
    return TrainingOrder(self.task.buckets, batch_size, self.settings.shape_seed)

  def run(self, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Record]:
    """Trains what is missing of cells x seeds and returns the records in the order of the cells.

    Raises:
      loop.Stopped: as asked; finished cells are stored, unfinished ones saved.
      UserError: see data/errors.py.
    """
    missing = {cell: self.results.missing(self.task.name, cell, seeds) for cell in cells}
    # Of a single cell the weights are kept: its best run need not be trained again for them.
    keep_best = len(cells) == 1 and len(seeds) <= self.settings.runs_at_once
    finished = sum(not left for left in missing.values())
    if finished and finished < len(cells):
      self.say(f"{self.task.name}: {finished} of {len(cells)} cells are finished already")
    for together in sharing.programs(missing, seeds, self.settings.runs_at_once):
      for record in self._train(together, keep_best=keep_best):
        stored = self.results.save(self.task.name, record.cell, record)
        done = sum(not self.results.missing(self.task.name, cell, seeds) for cell in cells)
        self._say_cell(stored, done, len(cells))
    if any(missing.values()):  # else the states there are of something that comes after this
      self._forget_states()
    found = [self.results.finished(self.task.name, cell, seeds) for cell in cells]
    return [record for record in found if record is not None]

  def run_again(self, cell: Cell, seed: int) -> Trained:
    """One run with its parameters at its best evaluation: kept by `run`, or trained again, the same run."""
    if self._kept is None or (cell, seed) not in self._kept.runs:
      self._train([(cell, [seed])], keep_best=True)
      self._forget_states()
    assert self._kept is not None
    return self._kept.run(cell, seed)

  def _forget_states(self) -> None:
    """Of programs whose cells are stored now, and of those that were cut in another way."""
    shutil.rmtree(self.results.folder(self.task.name) / UNFINISHED, ignore_errors=True)

  def _say_cell(self, record: Record, done: int, count: int) -> None:
    found = summary.summarise(record)
    seeds = " ".join(f"{100 * value:.1f}" for value in found.per_seed.values())
    self.say(
      f"{self.task.name} {done}/{count}  {record.cell.name}: {record.metric} "
      f"{self.settings.summary} {100 * summary.score(found, self.settings.summary):.1f} (seeds {seeds}), "
      f"{record.seconds:,.0f} s"
    )

  def _train(self, together: Sequence[tuple[Cell, Sequence[int]]], *, keep_best: bool) -> list[Record]:
    """Trains runs of cells that share batch size and epochs."""
    cell = together[0][0]
    order = self._order(cell.batch_size)
    num_steps = order.steps_per_epoch * cell.epochs
    flat = [(one, seed) for one, seeds in together for seed in seeds]
    group = self.program.group(_runs(flat, num_steps))
    at = protocols.evaluation_steps(order.steps_per_epoch, cell.epochs, self.settings.evaluations_per_epoch)
    schedule = loop.Schedule(num_steps, tuple(at), order.steps_per_epoch)
    saving = self._saving(flat, keep_best=keep_best)
    started = time.monotonic()
    outcome = loop.train(
      group,
      functools.partial(_feed, self.task, order, [seed for _, seed in flat]),
      lambda outputs_of: self.task.evaluate(outputs_of, len(flat)),
      schedule,
      metric=self.task.metric,
      stop=self.stop,
      keep_best=keep_best,
      saving=saving,
      label=f"{self.task.name} {cell.name}" + (f" and {len(together) - 1} more" if together[1:] else ""),
      show_progress=self.settings.show_progress,
      say=self.say,
    )
    seconds = (time.monotonic() - started) / len(flat)
    self._warn(flat, outcome)
    records = self._records(together, outcome, seconds)
    self._kept = _Kept(flat, records, group, outcome.best_params) if keep_best else None
    return records

  def _saving(self, flat: Sequence[tuple[Cell, int]], *, keep_best: bool) -> loop.Saving:
    names = [f"{cell.name} {seed}" for cell, seed in flat]
    directory = self.results.folder(self.task.name) / UNFINISHED
    identity = {"runs": names, "keep_best": keep_best, "fingerprint": self.results.fingerprint}
    # Other runs, or other settings, are another folder: what lies there is never taken for these.
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return loop.Saving(directory / name, identity, self.settings.save_seconds)

  def _records(
    self, together: Sequence[tuple[Cell, Sequence[int]]], outcome: loop.Outcome, seconds: float
  ) -> list[Record]:
    found, runs = [], iter(outcome.evaluations)
    devices = tuple(sorted({device.device_kind for device in jax.devices()}))
    for cell, seeds in together:
      by_seed = {seed: [Evaluation(**one) for one in next(runs)] for seed in seeds}
      found.append(Record(self.task.name, cell, self.task.metric, by_seed, devices, seconds * len(seeds)))
    return found

  def _warn(self, flat: Sequence[tuple[Cell, int]], outcome: loop.Outcome) -> None:
    for (cell, seed), evaluations in zip(flat, outcome.evaluations):
      if skipped := evaluations[-1]["skipped_updates"]:
        self.say(
          f"{self.task.name}: {cell.name}, seed {seed}: {skipped:,} updates left out that were not finite"
        )


@dataclasses.dataclass(frozen=True)
class _Kept:
  """The best parameters of the runs that were trained last, on the devices."""

  runs: Sequence[tuple[Cell, int]]
  records: Sequence[Record]
  group: RunGroup
  best: Any

  def run(self, cell: Cell, seed: int) -> Trained:
    params = self.group.params_of(self.best, list(self.runs).index((cell, seed)))
    record = next(record for record in self.records if record.cell == cell)
    return Trained(record, params, self.group.alone(params))


def _runs(flat: Sequence[tuple[Cell, int]], num_steps: int) -> Runs:
  return Runs(
    seeds=np.asarray([seed for _, seed in flat], np.int32),
    learning_rates=np.asarray([cell.learning_rate for cell, _ in flat], np.float32),
    total_steps=np.full(len(flat), num_steps, np.int32),
    warmup_steps=np.asarray([protocols.warmup_steps(cell, num_steps) for cell, _ in flat], np.int32),
  )


def _feed(task: Task, order: TrainingOrder, seeds: Sequence[int], step: int) -> Batch:
  """The host batch of a step; runs of one seed see the same examples, so these are padded once."""
  parts = {}
  for seed in dict.fromkeys(seeds):
    length, rows = order.batch(seed, step)
    parts[seed] = pad(task.train, rows, length=length, batch_size=order.batch_size, pad_id=task.pad_id)
  first = parts[seeds[0]]
  return {name: np.stack([parts[seed][name] for seed in seeds]) for name in first}
