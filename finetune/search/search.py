"""A search: every cell of a plan with all its seeds, several runs to a program, finished ones never again.

When runs are finished, first the weights of those that may still be chosen are written, then the results: a
kill loses nothing, and the chosen run need not be trained again for its weights.
"""

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from data import files, progress
from finetune.papers.spaces import Cell
from finetune.search import loop, sharing, summary
from finetune.search.plan import Plan, Run
from finetune.search.program import Batch, Program, RunGroup
from finetune.search.results import Results
from finetune.search.save_model import KeptWeights, Weights
from finetune.search.session import Session
from finetune.search.summary import Evaluation, Record
from pretrain.checkpoints.checkpoint import DIRECTORY, saved_steps
from pretrain.optim import OptimizerSettings

# Folders in the task's: saved states; see `KeptWeights`; see `Logs`.
UNFINISHED, WEIGHTS, LOGS = "unfinished", "weights", "logs"


@dataclasses.dataclass(frozen=True)
class Trained:
  """One run at its best evaluation."""

  params: Any  # {'encoder', 'heads'} host arrays
  step: int  # updates
  outputs_of: Callable[[Batch], Any]  # host batch [1, batch, ...] to host outputs; raises `loop.Stopped`


class Search:
  """The runs of one plan."""

  def __init__(self, plan: Plan, session: Session) -> None:
    """Compiles and trains nothing yet."""
    train = session.config.train
    self.plan, self.session = plan, session
    self.program = Program(
      plan.problem,
      plan.init_encoder,
      OptimizerSettings(learning_rate=0.0, total_steps=1, **plan.optimizer),
      mapping=train.mapping,
      microbatches=train.microbatches,
    )
    self.results = Results(session.workdir, plan.fingerprint, seed_field=plan.seed_field)
    self.runs_at_once = session.runs_at_once(
      self.program,
      batch_size=max(cell.batch_size for cell in plan.cells),
      length=plan.buckets.lengths[-1],
      num_seeds=len(plan.seeds),
    )
    self._folder = self.results.folder(plan.name)
    self.weights = KeptWeights(self._folder / WEIGHTS)

  def run(self, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Record]:
    """Trains what is missing of cells x seeds and returns the records in the order of the cells.

    Raises:
      loop.Stopped: as asked; finished runs are stored, unfinished ones saved.
      UserError: see data/errors.py.
    """
    plan, results = self.plan, self.results
    missing = {cell: results.missing(plan.name, cell, seeds) for cell in cells}
    finished = sum(not left for left in missing.values())
    if finished and finished < len(cells):
      self.session.say(f"{plan.name}: {finished} of {len(cells)} cells are finished already")
    for together in sharing.programs(missing, seeds, self.runs_at_once, by_seed=plan.by_seed):
      group, train = self._training([(cell, seed) for cell, part in together for seed in part])
      started = time.monotonic()
      outcome = train()
      seconds = time.monotonic() - started
      for record, params_of in self._records(together, group, outcome, seconds):
        stored = self._store(record, params_of, cells, seeds)
        done = sum(not results.missing(plan.name, cell, seeds) for cell in cells)
        self._say_cell(stored, done, len(cells))
      del outcome, params_of  # the best weights, on the devices, which the next program fills
    if any(missing.values()):  # with nothing missing they belong to a search that goes on: keep them
      self._forget_states()
    found = [results.finished(plan.name, cell, seeds) for cell in cells]
    return [record for record in found if record is not None]

  def trained(self, cell: Cell, seed: int) -> Trained:
    """A finished run with its weights: those that were kept, or, if there are none, it is trained again once.

    There are none of results that an earlier version stored, of a search that kept none (`output.save_model`
    was off then), or of a cell that was beaten by one that is not in the search any more.
    """
    kept = self.weights.load(cell, seed, self.results.fingerprint_of([seed]))
    if kept is None:
      kept = self._train_again(cell, seed)
    group = self.program.group(self.plan.runs([(cell, seed)]))
    params = group.load(kept.params)
    is_shown, stop = self.session.show_progress, self.session.stop
    label = f"{self.plan.name} {cell.name}, {self.plan.seed_name} {seed}"
    bar = progress.bar("batch", is_shown=is_shown, desc=label, leave=False)

    def outputs_of(batch: Batch) -> Any:
      if stop.is_set:
        raise loop.Stopped
      bar.update(1)
      return group.outputs(params, batch)

    return Trained(kept.params, kept.step, outputs_of)

  def _train_again(self, cell: Cell, seed: int) -> Weights:
    name, metric = self.plan.name, self.plan.metric
    run = f"{cell.name}, {self.plan.seed_name} {seed}"
    self.session.say(f"{name}: no weights were kept of {run}; this run is trained again for them")
    group, train = self._training([(cell, seed)], needs_weights=True)
    outcome = train()
    best = summary.best([Evaluation(**one) for one in outcome.evaluations[0]], metric)
    stored = self.results.finished(name, cell, [seed])
    before = summary.summarise(stored).per_seed[seed] if stored else best.metrics[metric]
    if abs(best.metrics[metric] - before) > 1e-6:
      self.session.say(
        f"{name}: trained again, {run} gives {best.metrics[metric]:.4f}, not {before:.4f} as in the search "
        "(other devices, or another number of runs in the program)"
      )
    params = group.params_of(outcome.best_params, 0)
    self.weights.save(cell, seed, params, step=best.step, fingerprint=self.results.fingerprint_of([seed]))
    self._forget_states()
    return Weights(params, best.step)

  def _training(
    self, runs: Sequence[Run], *, needs_weights: bool = False
  ) -> tuple[RunGroup, Callable[[], loop.Outcome]]:
    """Runs that share batch size and length, and what trains them to the end."""
    plan, session, cell = self.plan, self.session, runs[0][0]
    group, seeds = self.program.group(plan.runs(runs)), [seed for _, seed in runs]
    saving, keep_best = self._saving(runs, needs_weights=needs_weights)
    more = len({cell for cell, _ in runs}) - 1
    train = functools.partial(
      loop.train,
      group,
      plan.feed(seeds, cell.batch_size),
      lambda outputs_of: plan.evaluate(outputs_of, seeds),
      plan.schedule(cell),
      metric=plan.metric,
      stop=session.stop,
      keep_best=keep_best,
      saving=saving,
      logs=[self._folder / LOGS / f"{cell.name}_seed{seed}" for cell, seed in runs],
      label=f"{plan.name} {cell.name}" + (f" and {more} more" if more else ""),
      show_progress=session.show_progress,
      say=session.say,
    )
    return group, train

  def _saving(self, runs: Sequence[Run], *, needs_weights: bool) -> tuple[loop.Saving, bool]:
    """Where the runs' state is saved, and whether with the best weights: a state that is there decides."""
    names = [f"{cell.name} {seed}" for cell, seed in runs]
    wanted = self.plan.keeps_weights or needs_weights
    identity = {"runs": names, "fingerprint": self.results.fingerprint_of([seed for _, seed in runs])}
    # The last is what earlier versions wrote of prompts.
    choices = [(identity | {"keep_best": kept}, kept) for kept in (wanted, not wanted)] + [(identity, True)]
    seconds = 60.0 * self.session.config.train.save_minutes
    savings = [
      (loop.Saving(self._state(one), one, seconds), kept)
      for one, kept in choices
      if kept or not needs_weights
    ]
    there = [saving for saving in savings if saved_steps(saving[0].directory / DIRECTORY)]
    return (there or savings)[0]

  def _state(self, identity: dict[str, Any]) -> Path:
    # Other runs, or other settings, are another folder: what lies there is never taken for these.
    return self._folder / UNFINISHED / files.digest_json(identity)[:16]

  def _forget_states(self) -> None:
    """Removes the states of programs whose runs are stored now, and of other shares of the same runs."""
    shutil.rmtree(self._folder / UNFINISHED, ignore_errors=True)

  def _records(
    self, together: sharing.Part, group: RunGroup, outcome: loop.Outcome, seconds: float
  ) -> Iterator[tuple[Record, Callable[[int], Any] | None]]:
    """Yields the record of each cell that was trained, and what gives the best weights of a seed of it."""
    devices = tuple(sorted({device.device_kind for device in jax.devices()}))
    count, first, best = group.runs.count, 0, outcome.best_params
    for cell, seeds in together:
      runs = dict(zip(seeds, range(first, first + len(seeds))))
      first += len(seeds)
      by_seed = {seed: [Evaluation(**one) for one in outcome.evaluations[at]] for seed, at in runs.items()}
      for seed, evaluations in by_seed.items():
        if skipped := evaluations[-1].skipped_updates:
          self.session.say(
            f"{self.plan.name}: {cell.name}, {self.plan.seed_name} {seed}: {skipped:,} updates left out that "
            "were not finite"
          )
      record = Record(self.plan.name, cell, self.plan.metric, by_seed, devices, seconds * len(seeds) / count)
      yield record, None if best is None else lambda seed, at=runs: group.params_of(best, at[seed])

  def _store(
    self,
    record: Record,
    params_of: Callable[[int], Any] | None,
    cells: Sequence[Cell],
    seeds: Sequence[int],
  ) -> Record:
    """Writes the weights that may still be wanted, then the results; removes the weights that are beaten."""
    name, results = self.plan.name, self.results
    before = {cell: results.read(name, cell) for cell in cells}
    stored = before[record.cell]
    runs = record.seeds if stored is None else stored.seeds | record.seeds
    joined = record._replace(seeds=dict(sorted(runs.items())))
    known = [one for one in (before | {record.cell: joined}).values() if one is not None]
    wanted = summary.may_be_chosen(known, seeds, self.plan.summary, by_seed=self.plan.by_seed)
    for seed, evaluations in record.seeds.items():
      if params_of is not None and (record.cell, seed) in wanted:
        step = summary.best(evaluations, record.metric).step
        fingerprint = results.fingerprint_of([seed])
        self.weights.save(record.cell, seed, params_of(seed), step=step, fingerprint=fingerprint)
    saved = results.save(name, record.cell, record)
    if self.plan.keeps_weights:
      self.weights.forget_all_but(wanted)
    return saved

  def _say_cell(self, record: Record, done: int, count: int) -> None:
    plan, shown = self.plan, summary.summarise(record)
    seeds = " ".join(f"{100 * value:.1f}" for value in shown.per_seed.values())
    self.session.say(
      f"{plan.name} {done}/{count}  {record.cell.name}: {record.metric} {plan.summary} "
      f"{100 * summary.score(shown, plan.summary):.1f} ({plan.seed_name}s {seeds}), {record.seconds:,.0f} s"
    )
