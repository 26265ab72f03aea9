"""A search: trains every cell of a plan with all its seeds, several runs in a program; skips finished runs.

After runs finish, the weights of those that may still be chosen are written first, then the results. So a
kill loses nothing, and the chosen run need not be trained again for its weights.
"""

import dataclasses
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data import files, progress
from data.errors import DataError
from finetune.papers.protocols import Cell
from finetune.search import loop, sharing, summary
from finetune.search.plan import Plan, Run
from finetune.search.program import Batch, Program, RunGroup
from finetune.search.results import Results
from finetune.search.save_model import KeptWeights
from finetune.search.session import Session
from finetune.search.summary import Evaluation, Record
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.optim import OptimizerSettings

logger = logging.getLogger(__name__)

# Folders in the task's folder: saved states of `loop`, weights of `KeptWeights`, files of `Logs`.
UNFINISHED, WEIGHTS, LOGS = "unfinished", "weights", "logs"


@dataclasses.dataclass(frozen=True)
class Trained:
  """A trained run: its parameters at the best evaluation, and a function that computes its outputs."""

  params: Any  # {'encoder', 'heads'} host arrays
  step: int  # updates
  outputs_of: Callable[[Batch], Any]  # host batch [1, batch, ...] to host outputs; raises `loop.Stopped`


class Search:
  """Trains the runs of one plan, every cell with every seed, and stores their results."""

  def __init__(self, plan: Plan, session: Session) -> None:
    """Opens the stored results; nothing is compiled or trained yet."""
    train = session.config.train
    self.plan, self.session = plan, session
    self.program = Program(
      plan.problem,
      plan.init_encoder,
      OptimizerSettings(learning_rate=0.0, total_steps=1, **plan.optimizer),
      mapping=train.mapping,
      microbatches=train.microbatches,
    )
    self.results = Results(session.workdir, plan.name, plan.fingerprint, seed_field=plan.seed_field)
    self.runs_at_once = 1
    if not plan.problem.compares_rows:
      self.runs_at_once = session.runs_at_once(
        self.program,
        batch_size=max(cell.batch_size for cell in plan.cells),
        length=plan.buckets.lengths[-1],
        num_seeds=len(plan.seeds),
      )
    self._folder = self.results.folder
    self.weights = KeptWeights(self._folder / WEIGHTS)

  def run(self, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Record]:
    """Trains each cell with each seed unless the result is stored; returns the records by cell.

    Raises:
      loop.Stopped: a stop was requested; finished runs are stored, unfinished ones saved.
      UserError: see data/errors.py.
    """
    plan, results = self.plan, self.results
    missing = {cell: results.missing(cell, seeds) for cell in cells}
    left = {cell: set(seeds_left) for cell, seeds_left in missing.items() if seeds_left}
    finished = len(cells) - len(left)
    if finished and finished < len(cells):
      logger.info(f"{plan.name}: finished before: {finished} of {len(cells)} cells")
    for together in sharing.programs(missing, seeds, self.runs_at_once, by_seed=plan.by_seed):
      started = time.monotonic()
      group, outcome, state = self._train([(cell, seed) for cell, part in together for seed in part])
      seconds, first = time.monotonic() - started, 0
      for cell, part in together:
        at = dict(zip(part, range(first, first + len(part))))
        first += len(part)
        by_seed = {seed: [Evaluation(**one) for one in outcome.evaluations[run]] for seed, run in at.items()}
        record = Record(plan.name, cell, plan.metric, by_seed)
        self._store(record, group, outcome.best_params, at, cells=cells, seeds=seeds)
        left[cell] -= set(part)
        done = len(cells) - sum(map(bool, left.values()))
        self._say_cell(record, f"{done}/{len(cells)}", seconds * len(part) / group.runs.count)
      del group, outcome  # frees the best weights on the devices: the next program needs the memory
      shutil.rmtree(state, ignore_errors=True)
    self._forget_states()
    found = [results.finished(cell, seeds) for cell in cells]
    return [record for record in found if record is not None]

  def trained(self, cell: Cell, seed: int) -> Trained:
    """Returns a finished run with its weights; a run whose weights are missing is trained again."""
    fingerprint = self.results.fingerprint_of(seed)
    kept = self.weights.load(cell, seed, fingerprint)
    if kept is None:
      logger.info(f"{self.plan.name}: weights of {cell.name}, seed {seed}, are missing; training it again")
      self.results.forget(cell, seed)
      self.run([cell], [seed])
      kept = self.weights.load(cell, seed, fingerprint)
      assert kept is not None  # a search of one run keeps its weights
    group = self.program.group(self.plan.runs([(cell, seed)]))
    of_run, step = kept
    params = group.load(of_run)
    is_shown, stop = self.session.show_progress, self.session.stop
    label = f"{self.plan.name} {cell.name}, {self.plan.seed_name} {seed}"
    bar = progress.bar("batch", is_shown=is_shown, desc=label, leave=False)

    def outputs_of(batch: Batch) -> Any:
      if stop.is_set:
        raise loop.Stopped
      bar.update(1)
      return group.outputs(params, batch)

    return Trained(of_run, step, outputs_of)

  def _forget_states(self) -> None:
    """Removes saved states of stored runs, left by other programs; others belong to a larger search."""
    unfinished = self._folder / UNFINISHED
    for state in unfinished.glob("*"):
      try:
        runs = read_meta(step_path(state))["identity"]["runs"]
      except DataError:
        runs = []  # nothing can resume from it
      if all((self._folder / f"{run}.json").is_file() for run in runs):
        shutil.rmtree(state, ignore_errors=True)
    if unfinished.is_dir() and not any(unfinished.iterdir()):
      unfinished.rmdir()

  def _train(self, runs: Sequence[Run]) -> tuple[RunGroup, loop.Outcome, Path]:
    """Trains runs of equal batch size and length to the end; the path is that of their saved state."""
    plan, session, cell = self.plan, self.session, runs[0][0]
    group, seeds = self.program.group(plan.runs(runs)), [seed for _, seed in runs]
    fingerprint = self.results.fingerprint
    if plan.seed_field:
      of_seeds = {str(seed): fingerprint[plan.seed_field][str(seed)] for seed in seeds}
      fingerprint = fingerprint | {plan.seed_field: of_seeds}
    names = [f"{cell.name}_seed{seed}" for cell, seed in runs]
    identity = {"runs": names, "rows": group.rows, "fingerprint": fingerprint}
    # Other runs, settings or devices have another folder, so that these never resume from their state.
    state = self._folder / UNFINISHED / files.digest_json(identity)[:16]
    more = len({cell for cell, _ in runs}) - 1
    outcome = loop.train(
      group,
      plan.feed(seeds, cell.batch_size),
      lambda outputs_of: plan.evaluate(outputs_of, seeds),
      plan.schedule(cell),
      metric=plan.metric,
      stop=session.stop,
      saving=loop.Saving(state, identity, 60.0 * session.config.train.save_minutes),
      logs=[self._folder / LOGS / name for name in names],
      label=f"{plan.name} {cell.name}" + (f" and {more} more" if more else ""),
      show_progress=session.show_progress,
    )
    return group, outcome, state

  def _store(
    self,
    record: Record,
    group: RunGroup,
    best_params: Any,
    runs: Mapping[int, int],
    *,
    cells: Sequence[Cell],
    seeds: Sequence[int],
  ) -> None:
    """Writes weights of runs that may still be chosen, then the results; removes all other weights.

    `runs` is {seed: number of its run in the group}.
    """
    plan, results = self.plan, self.results
    known = {cell: results.read(cell) for cell in cells}
    stored = known[record.cell]
    joined = record.seeds if stored is None else stored.seeds | record.seeds
    known[record.cell] = record._replace(seeds=dict(sorted(joined.items())))
    of_cells = [one for one in known.values() if one is not None]
    wanted = summary.may_be_chosen(of_cells, seeds, plan.summary, by_seed=plan.by_seed)
    for seed, evaluations in record.seeds.items():
      if (record.cell, seed) in wanted:
        step = summary.best(evaluations, record.metric).step
        fingerprint = results.fingerprint_of(seed)
        params = group.params_of(best_params, runs[seed])
        self.weights.save(record.cell, seed, params, step=step, fingerprint=fingerprint)
    results.save(record)
    self.weights.forget_all_but(wanted, cells)

  def _say_cell(self, record: Record, place: str, seconds: float) -> None:
    """Logs the scores of a cell's runs that have just ended, and warns of their skipped updates."""
    plan, cell = self.plan, record.cell.name
    for seed, evaluations in record.seeds.items():
      if skipped := evaluations[-1].skipped_updates:
        logger.warning(
          f"{plan.name}: {cell}, {plan.seed_name} {seed}: skipped updates that were not finite: {skipped:,}"
        )
    shown = summary.summarise(record)
    seeds = " ".join(f"{100 * value:.1f}" for value in shown.per_seed.values())
    logger.info(
      f"{plan.name} {place}  {cell}: {record.metric} {plan.summary} "
      f"{100 * summary.score(shown, plan.summary):.1f} ({plan.seed_name}s {seeds}), {seconds:,.0f} s"
    )
