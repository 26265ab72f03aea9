"""The grid of a prompt task: every cell on every split, then the test set with the best run of each split."""

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from finetune.papers.spaces import StepCell
from finetune.prompt.data import PromptData
from finetune.prompt.task import Trial
from finetune.search import loop, summary, tables
from finetune.search.program import Batch, Problem, Program, Runs
from finetune.search.results import Results
from finetune.search.search import UNFINISHED
from finetune.search.session import Session
from finetune.search.summary import Evaluation, Record
from pretrain.optim import OptimizerSettings

# LM-BFF's trainer leaves these at the defaults of transformers 3.4: AdamW with eps outside the root.
OPTIMIZER = {
  "schedule": "linear",
  "adam_b1": 0.9,
  "adam_b2": 0.999,
  "adam_eps": 1e-8,
  "weight_decay": 0.0,
  "clip_norm": 1.0,
}
TEST = "test"  # folder of the test set's results

Run = tuple[StepCell, int]  # and its split


class Best(NamedTuple):
  """A run at its best evaluation.

  Attributes:
    cell: of the run.
    evaluation: the best.
    params: {'encoder', 'heads'} host arrays.
  """

  cell: StepCell
  evaluation: Evaluation
  params: Any


class PromptRuns:
  """The runs of one task. Finished ones are never trained or tested again."""

  def __init__(
    self, session: Session, data: PromptData, problem: Problem, cells: Sequence[StepCell], *, head: str
  ) -> None:
    """Compiles nothing yet.

    Args:
      session: of this start.
      data: of the task.
      problem: of the task.
      cells: of the grid.
      head: 'clm' or 'mlm'.
    """
    config: Any = session.config
    self._config = config
    self.session, self.data, self.task, self.splits = session, data, data.task, list(data.pools)
    self._cells = {cell.name: cell for cell in cells}
    settings = OptimizerSettings(learning_rate=0.0, total_steps=1, **OPTIMIZER)
    self.program = Program(
      problem,
      session.start.init_encoder,
      settings,
      mapping=config.train.mapping,
      microbatches=config.train.microbatches,
    )
    fingerprint = session.identity | {
      "data": {str(split): digest for split, digest in data.digests.items()},
      "head": head,
      "words": [int(word) for word in data.writer.word_ids],
      "optimizer": OPTIMIZER,
      "max_length": data.lengths.max_length,
      "num_samples": data.lengths.num_samples,
      "eval_every": config.prompt.eval_every,
    }
    # Splits can be added to a grid: each has its own digest.
    self.results = Results(session.workdir, fingerprint, seed_field="data")
    rows = config.prompt.test_rows
    # Results of a part never stand in the way of the whole.
    self.tested = Results(
      session.workdir / (f"{TEST}-{rows}" if rows else TEST),
      fingerprint | {"test": data.test_digest},
      seed_field="data",
    )
    self._kept: dict[int, Best] = {}  # of each split, among the runs trained in this process

  def train(self) -> list[Trial]:
    """Trains what is missing of cells x splits.

    Returns:
      Every run in the order of the cells; `test` has the development set's metrics.

    Raises:
      loop.Stopped: as asked; finished runs are stored, unfinished ones saved.
      UserError: see data/errors.py.
    """
    cells = self._cells.values()
    missing = {
      (cell, split) for cell in cells for split in self.results.missing(self.task, cell, self.splits)
    }
    every = [(cell, split) for cell in cells for split in self.splits]
    if 0 < len(missing) < len(every):
      finished = len(every) - len(missing)
      self.session.say(f"{self.task}: {finished} of {len(every)} runs are finished already")
    # Shares of all runs, whatever is finished: an interrupted program has the same runs at the next start.
    parts = [[run for run in together if run in missing] for together in self._programs(every)]
    for together in filter(None, parts):
      for record in self._train(together):
        self._say(self.results.save(self.task, record.cell, record))
    if missing:  # else what is there was saved by `best`, which goes on with it
      self._clean()
    found = []
    for cell in cells:
      record = self.results.finished(self.task, cell, self.splits)
      assert record is not None
      for split, evaluations in record.seeds.items():
        metrics = summary.best(evaluations, self.data.metric).metrics
        found.append(Trial(split, cell.name, metrics[self.data.metric], metrics))
    return found

  def best(self, chosen: Iterable[Trial]) -> dict[int, Best]:
    """{split: a chosen run}: kept since it was trained, or trained again, the same run."""
    wanted = {trial.seed: self._cells[trial.cell] for trial in chosen}
    again = [
      (cell, split)
      for split, cell in wanted.items()
      if split not in self._kept or self._kept[split].cell != cell
    ]
    for _, split in again:
      self._kept.pop(split, None)
    if again:
      self.session.say(f"{self.task}: {len(again)} chosen runs are trained again for their weights")
    for together in self._programs(again):
      self._compare(self._train(together))
    if again:
      self._clean()
    return {split: self._kept[split] for split in wanted}

  def _compare(self, records: Sequence[Record]) -> None:
    for record in records:
      before = self.results.finished(self.task, record.cell, list(record.seeds))
      assert before is not None
      values = summary.summarise(before).per_seed
      for split, now in summary.summarise(record).per_seed.items():
        if abs(now - values[split]) > 1e-6:
          self.session.say(
            f"{self.task}: trained again, {record.cell.name} of split {split} gives {now:.4f}, not "
            f"{values[split]:.4f} as before (other devices, or another number of runs in the program)"
          )

  def test(self, chosen: Sequence[Trial]) -> list[Trial]:
    """The chosen runs with the metrics of the test set, each at its best evaluation.

    Raises:
      loop.Stopped: as asked; splits that are through are stored.
      UserError: see data/errors.py.
    """
    metric = self.data.metric
    missing = [
      trial for trial in chosen if self.tested.missing(self.task, self._cells[trial.cell], [trial.seed])
    ]
    for split, best in self.best(missing).items():
      started = time.monotonic()
      metrics = self._test(split, best)
      seconds = time.monotonic() - started
      evaluation = best.evaluation._replace(metrics=metrics)
      record = Record(self.task, best.cell, metric, {split: [evaluation]}, _devices(), seconds)
      self.tested.save(self.task, best.cell, record)
      self.session.say(
        f"{self.task}: split {split}, test {metric} {tables.percent(metrics[metric])}, {seconds:,.0f} s"
      )
    found = []
    for trial in chosen:
      record = self.tested.finished(self.task, self._cells[trial.cell], [trial.seed])
      assert record is not None
      found.append(trial._replace(test=record.seeds[trial.seed][0].metrics))
    return found

  def _test(self, split: int, best: Best) -> dict[str, float]:
    outputs = self.program.group(_runs([(best.cell, split)])).alone(best.params)
    label, watched = f"{self.task} test, split {split}", self.session.show_progress
    with tqdm(unit="batch", desc=label, leave=False, disable=not watched, dynamic_ncols=True) as bar:

      def outputs_of(batch: Batch):
        if self.session.stop.is_set:
          raise loop.Stopped
        bar.update(1)
        return outputs(batch)

      return self.data.test(outputs_of, split)

  def _programs(self, runs: Iterable[Run]) -> list[list[Run]]:
    """Runs that share a program: those of one batch size, in equal shares that fit the memory."""
    alike: dict[int, list[Run]] = {}
    for run in runs:
      alike.setdefault(run[0].batch_size, []).append(run)
    found = []
    for batch_size, members in alike.items():
      most = self.session.runs_at_once(
        self.program,
        batch_size=batch_size,
        length=self.data.lengths.max_length,
        num_seeds=len(self.splits),
      )
      size = -(-len(members) // -(-len(members) // most))
      found += [members[at : at + size] for at in range(0, len(members), size)]
    return found

  def _train(self, together: Sequence[Run]) -> list[Record]:
    """Trains runs of one batch size and keeps the best parameters of each split."""
    cell, splits = together[0][0], [split for _, split in together]
    group = self.program.group(_runs(together))
    sets = [self.data.dev[split] for split in splits]
    started = time.monotonic()
    outcome = loop.train(
      group,
      self.data.feed(splits, cell.batch_size),
      lambda outputs_of: self.data.evaluate(outputs_of, sets),
      self._schedule(cell),
      metric=self.data.metric,
      stop=self.session.stop,
      keep_best=True,
      saving=self._saving(together),
      label=f"{self.task} {cell.name}" + (f" and {len(together) - 1} more runs" if together[1:] else ""),
      show_progress=self.session.show_progress,
    )
    seconds = (time.monotonic() - started) / len(together)
    found: dict[StepCell, dict[int, list[Evaluation]]] = {}
    for place, (run_cell, split) in enumerate(together):
      evaluations = [Evaluation(**one) for one in outcome.evaluations[place]]
      found.setdefault(run_cell, {})[split] = evaluations
      self._keep(split, run_cell, evaluations, group, outcome.best_params, place)
      if skipped := evaluations[-1].skipped_updates:
        self.session.say(
          f"{self.task}: {run_cell.name}, split {split}: {skipped:,} updates left out that were not finite"
        )
    return [
      Record(self.task, run_cell, self.data.metric, by_split, _devices(), seconds * len(by_split))
      for run_cell, by_split in found.items()
    ]

  def _keep(self, split, cell, evaluations, group, params, place) -> None:
    best = summary.best(evaluations, self.data.metric)
    before = self._kept.get(split)
    if before is None or best.metrics[self.data.metric] > before.evaluation.metrics[self.data.metric]:
      self._kept[split] = Best(cell, best, group.params_of(params, place))

  def _schedule(self, cell: StepCell) -> loop.Schedule:
    every, last = self._config.prompt.eval_every, cell.num_steps
    examples = len(next(iter(self.data.pools.values())).queries)
    at = sorted({*range(every, last, every), last})
    return loop.Schedule(last, tuple(at), -(-examples // cell.batch_size))

  def _saving(self, together: Sequence[Run]) -> loop.Saving:
    identity = {
      "runs": [f"{cell.name} {split}" for cell, split in together],
      "fingerprint": self.results.fingerprint_of([split for _, split in together]),
    }
    # Other runs, or other settings, are another folder: what lies there is never taken for these.
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    directory = self.results.path(self.task, together[0][0]).parent / UNFINISHED
    return loop.Saving(directory / name, identity, 60.0 * self._config.train.save_minutes)

  def _clean(self) -> None:
    shutil.rmtree(self.session.workdir / self.task / UNFINISHED, ignore_errors=True)

  def _say(self, record: Record) -> None:
    found = summary.summarise(record)
    values = ", ".join(f"{split}: {tables.percent(value)}" for split, value in found.per_seed.items())
    self.session.say(
      f"{self.task}  {record.cell.name}: dev {record.metric} {tables.percent(found.mean)} ({values}), "
      f"{record.seconds:,.0f} s"
    )


def _runs(together: Sequence[Run]) -> Runs:
  return Runs(
    seeds=np.asarray([split for _, split in together], np.int32),
    learning_rates=np.asarray([cell.learning_rate for cell, _ in together], np.float32),
    total_steps=np.asarray([cell.num_steps for cell, _ in together], np.int32),
    warmup_steps=np.zeros(len(together), np.int32),
  )


def _devices() -> tuple[str, ...]:
  return tuple(sorted({device.device_kind for device in jax.devices()}))
