"""A search: trains all cells of a plan with all seeds, stores their results, and saves the best run's model.

When a run has ended, its weights are written first if it may still be chosen, then its results. So a kill
loses nothing, and the chosen run need not be trained again for its weights.
"""

import dataclasses
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from data import errors, files, progress
from data.command import STOPPED
from data.errors import DataError, counted
from data.page import Curve, Plot
from data.tables import Report
from finetune.papers.protocols import Cell
from finetune.search import results, train
from finetune.search.problem import Batch, OutputsOf
from finetune.search.results import Evaluation, Record, Results, run_name
from finetune.search.session import Plan, Session
from finetune.search.train import Trainer
from pretrain.checkpoints import checkpoint, workdir
from pretrain.checkpoints.saved_model import save_params

logger = logging.getLogger(__name__)

# Folders in the task's folder: saved states of unfinished runs, kept weights, metrics files.
UNFINISHED, WEIGHTS, LOGS = "unfinished", "weights", "logs"
# Of the meta of pretraining; the model card reads them: pretraining, or the source of an imported checkpoint.
_OF_PRETRAINING = ("source", "records", "started_from", "devices")


class Chosen(NamedTuple):
  """The chosen run of a search: cell, seed, and its `metric` and `value` on the development set."""

  cell: Cell
  seed: int
  metric: str
  value: float
  fingerprint: Mapping[str, Any]  # of the run, as its results file has it

  @property
  def identity(self) -> dict[str, Any]:
    """Returns the JSON values that identify the run, for every file that is made from it."""
    return {**self._asdict(), "cell": self.cell.name}


class Trained(NamedTuple):
  """A trained run: its parameters at the best evaluation, and a function that computes its outputs."""

  params: Any  # {'encoder', 'heads'} host arrays
  step: int  # updates
  outputs_of: OutputsOf  # raises `train.Stopped`


class Search:
  """Trains the runs of one plan, every cell with every seed, and stores their results."""

  def __init__(self, plan: Plan, session: Session) -> None:
    """Opens the stored results; nothing is compiled or trained yet."""
    self.plan, self.session = plan, session
    self.trainer = Trainer(
      plan.problem,
      plan.init_encoder,
      plan.optimizer,
      microbatches=session.config.train.microbatches,
      devices=session.devices(plan.cells),
    )
    self.results = Results(session.workdir, plan.name, plan.fingerprint, plan.of_seeds)

  def run(self, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Record]:
    """Trains each cell with each seed unless the result is stored; returns the records by cell.

    Raises:
      train.Stopped: a stop was requested; finished runs are stored, the unfinished one is saved.
      UserError: see data/errors.py.
    """
    plan = self.plan
    stored = {cell: self.results.read(cell) for cell in cells}
    left = {cell: [seed for seed in seeds if seed not in stored[cell]] for cell in cells}
    total = len(cells) * len(seeds)
    done = total - sum(map(len, left.values()))
    if done and done < total:
      logger.info(f"{plan.name}: finished before: {done} of {counted(total, 'run')}")
    for cell in cells:
      for seed in left[cell]:
        started = time.monotonic()
        self._train(cell, seed, stored, seeds)
        done += 1
        score = self._record(cell, stored, [seed]).value(seed)
        name, seconds = f"{cell.name}, {plan.seed_name} {seed}", time.monotonic() - started
        at = f"{plan.name} {done}/{total}"
        logger.info(f"{at}  {name}: {plan.metric} {100 * score:.1f}, {seconds:,.0f} s")
        if skipped := stored[cell][seed][-1].skipped_updates:
          logger.warning(f"{plan.name}: {name}: skipped updates that were not finite: {skipped:,}")
      if left[cell] and len(seeds) > 1:
        score = results.score(results.summarise(self._record(cell, stored, seeds)), plan.summary)
        logger.info(f"{plan.name} {cell.name}: {plan.metric} {plan.summary} {100 * score:.1f}")
    self._remove_states()  # a kill may have left that of the last run
    return [self._record(cell, stored, seeds) for cell in cells]

  def _record(self, cell: Cell, stored: Mapping[Cell, dict], seeds: Sequence[int]) -> Record:
    return Record(self.plan.name, cell, self.plan.metric, {seed: stored[cell][seed] for seed in seeds})

  def _train(self, cell: Cell, seed: int, stored: dict[Cell, dict], seeds: Sequence[int]) -> None:
    """Trains a run; stores its weights, if it may be chosen, and its result, also in `stored`."""
    plan, session, name = self.plan, self.session, run_name(cell, seed)
    # Runs of other settings have another folder, so that these never resume from their state.
    state = f"{name}_{files.digest_json(self.results.fingerprint(seed))[:16]}"
    outcome = train.train(
      self.trainer,
      plan.hyper(cell, seed),
      plan.feed(seed, cell.batch_size),
      lambda outputs_of: plan.evaluate(outputs_of, seed),
      plan.schedule(cell),
      metric=plan.metric,
      work=train.Work(
        session.stop,
        label=f"{plan.name} {cell.name}, {plan.seed_name} {seed}",
        folder=self.results.folder / UNFINISHED / state,
        seconds=60.0 * session.config.train.save_minutes,
        logs=self.results.folder / LOGS / name,
        show_progress=session.show_progress,
      ),
    )
    evaluations = [Evaluation(**one) for one in outcome.evaluations]
    stored[cell] = dict(sorted({**stored[cell], seed: evaluations}.items()))
    records = [self._record(each, stored, list(runs)) for each, runs in stored.items() if runs]
    wanted = results.may_be_chosen(records, seeds, plan.summary, by_seed=plan.by_seed)
    if (cell, seed) in wanted:
      step, place = results.best(evaluations, plan.metric).step, self._weights(cell, seed)
      with errors.writing(place), files.whole_directory(place, replace=True) as aside:
        save_params(aside, outcome.params, {}, step=step, flag="--workdir")
    self.results.save(cell, seed, plan.metric, evaluations)
    for each, runs in stored.items():
      for other in runs:
        if (each, other) not in wanted:
          shutil.rmtree(self._weights(each, other), ignore_errors=True)
    self._remove_states()

  def _remove_states(self) -> None:
    """Removes the saved states of stored runs; those of unfinished runs stay."""
    states = self.results.folder / UNFINISHED
    for state in states.glob("*"):
      if (self.results.folder / f"{state.name.rpartition('_')[0]}.json").is_file():
        shutil.rmtree(state, ignore_errors=True)
    if states.is_dir() and not any(states.iterdir()):
      states.rmdir()

  def _weights(self, cell: Cell, seed: int) -> Path:
    return self.results.folder / WEIGHTS / run_name(cell, seed)

  def trained(self, cell: Cell, seed: int) -> Trained:
    """Returns a finished run with its weights; a run whose weights are missing is trained again."""
    label = f"{self.plan.name} {cell.name}, {self.plan.seed_name} {seed}"
    try:
      params, meta = checkpoint.load_params(self._weights(cell, seed))
    except DataError:
      logger.info(f"{label}: its weights are missing; training it again")
      self.results.path(cell, seed).unlink(missing_ok=True)
      self._train(cell, seed, {cell: {}}, [seed])  # a search of one run keeps its weights
      params, meta = checkpoint.load_params(self._weights(cell, seed))
    return Trained(params, meta["step"], self.outputs_of(params, label))

  def outputs_of(self, params: Any, label: str) -> OutputsOf:
    """Returns a function that computes a model's outputs, from its host parameters; a bar has the `label`."""
    placed, stop = self.trainer.place(params), self.session.stop
    bar = progress.bar("batch", is_shown=self.session.show_progress, desc=label, leave=False)

    def outputs_of(batch: Batch) -> Any:
      if stop.is_set:
        raise train.Stopped
      bar.update(1)
      return self.trainer.outputs(placed, batch)

    return outputs_of

  def choose(self, records: Sequence[Record], *, seeds: Sequence[int] = ()) -> Chosen:
    """Returns the best run of the best cell. With `seeds`, first trains those that the cell lacks."""
    record = results.choose(records, self.plan.metric, self.plan.summary)
    if seeds:
      (record,) = self.run([record.cell], seeds)
    return self.run_of(record, results.best_seed(record))

  def run_of(self, record: Record, seed: int) -> Chosen:
    """Returns the run of a record's cell with this seed as a `Chosen`, with its score."""
    return Chosen(record.cell, seed, record.metric, record.value(seed), self.results.fingerprint(seed))

  def save_model(
    self,
    chosen: Chosen,
    task: Mapping[str, Any],
    *,
    recipe: str = "",
    output_scale: float = 1.0,
    output_shift: float = 0.0,
    folder: str | None = None,
    texts: Mapping[str, str] | None = None,
  ) -> None:
    """Saves the chosen run's model in `folder` of the workdir (None: the search's), if it is not saved yet.

    The model's directory is replaced as a whole: `checkpoints/<step>`, `vocabulary`, and the `texts`, {name:
    content}. `task` has JSON values for export: 'name', 'labels', 'problem_type', 'activation' of a
    classification head. `recipe` is the name on the model card; the default is the name of the search. The
    saved head is changed so that it gives outputs * `output_scale` + `output_shift`: targets such as STS-B's
    scores are divided for training.

    Raises:
      StorageError: the model cannot be written.
    """
    session, name, start = self.session, self.plan.name, self.session.start
    scaled = {} if output_scale == 1.0 else {"output_scale": output_scale}
    scaled |= {} if output_shift == 0.0 else {"output_shift": output_shift}
    of_task = {**task, **scaled, **chosen.identity}
    directory = session.workdir / (name if folder is None else folder) / "model"
    if _saved_task(directory) == of_task:
      return
    trained = self.trained(chosen.cell, chosen.seed)
    pretrained = {} if session.config.from_scratch else start.meta
    origin = "scratch" if session.config.from_scratch else start.meta["config"].get("recipe", "encoder")
    meta = {
      "config": dict(start.meta["config"]) | {"recipe": f"{origin}-{recipe or name}"},
      "vocabulary_digest": start.encoder.vocabulary.digest,
      "task": of_task,
      "pretraining_step": pretrained.get("step", 0),
    }
    meta |= {name: pretrained[name] for name in _OF_PRETRAINING if name in pretrained}
    with errors.writing(directory), files.whole_directory(directory, replace=True) as aside:
      shutil.copytree(start.encoder.vocabulary_directory, aside / "vocabulary")
      for file, content in (texts or {}).items():
        (aside / file).write_text(content, encoding="utf-8")
      params = scale_outputs(trained.params, output_scale, output_shift)
      save_params(aside, params, meta, step=trained.step, flag="--workdir")
    which = f"{chosen.cell.name}, {self.plan.seed_name} {chosen.seed}"
    logger.info(f"{name}: model of {which}, saved in {directory}")


def scale_outputs(params: Any, scale: float, shift: float = 0.0) -> Any:
  """Returns `params` with a classification head that gives `scale` x outputs + `shift`."""
  if (scale, shift) == (1.0, 0.0):
    return params
  head = params["heads"]["classification"]
  output = {name: leaf * np.float32(scale) for name, leaf in head["output"].items()}
  output["bias"] = output["bias"] + np.float32(shift)
  return {**params, "heads": {**params["heads"], "classification": {**head, "output": output}}}


def _saved_task(directory: Path) -> dict[str, Any]:
  """Returns the `task` with which a directory's model was saved; {} if no model can be read."""
  try:
    return checkpoint.read_meta(checkpoint.step_path(directory)).get("task", {})
  except DataError:
    return {}


class Kind(Protocol):
  """Interface of a kind of fine-tuning (GLUE, SQuAD, ...): it makes search plans and reports the results.

  The constructor, of a session and `download` (whether TFDS may), reads all data before anything compiles.
  """

  session: Session
  plans: Sequence[Plan]

  def describe(self) -> list[str]:
    """Returns lines that describe checkpoint, data and searches."""
    ...

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves model and predictions of the best run after a plan's search, unless they are saved already.

    `records` has all cells of the plan with all seeds; `search` has the weights.
    """
    ...

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the report of all finished searches, from {name of a plan: its records}."""
    ...


def run(kind: Kind) -> int:
  """Runs all searches of a kind and writes the report; returns the exit code.

  Finished runs are not repeated. A stop request ends it after everything is saved.

  Raises:
    UserError: see data/errors.py.
  """
  session, records = kind.session, {}
  with workdir.owned(session.workdir):
    try:
      for plan in kind.plans:
        search = Search(plan, session)
        records[plan.name] = search.run(plan.cells, plan.seeds)
        kind.finish(search, records[plan.name])
        _plot(records[plan.name]).write(session.workdir / plan.name)
        jax.clear_caches()  # the next search compiles other programs
      report = kind.report(records)
      pictures = ", ".join(f"{plan.name}/curves.png" for plan in kind.plans)
      report = dataclasses.replace(report, notes=[*report.notes, f"Evaluations over steps: {pictures}."])
    except train.Stopped:
      logger.info("Stopped as requested; finished runs are stored; the same command resumes the search")
      return STOPPED
    report.publish(session.workdir)
  return 0


def _plot(records: Sequence[Record]) -> Plot:
  """Returns the plot of every run's metric over its steps, with a colour for each cell."""
  curves = []
  for record in records:
    for evaluations in record.seeds.values():
      steps = np.asarray([one.step for one in evaluations])
      values = np.asarray([one.metrics[record.metric] for one in evaluations])
      curves.append(Curve(record.cell.name, steps, values, has_dots=True))
  return Plot("curves", records[0].task, "updates", f"{records[0].metric}, development set", curves)
