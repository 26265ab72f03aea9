"""`kind='glue'`: a search for each task, or for fractions of its training set, and the papers' table."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from data.errors import ConfigError
from data.glue.tasks import TASKS
from data.tables import Report
from finetune import validate
from finetune.glue import fractions as report_fractions
from finetune.glue import predictions as glue_predictions
from finetune.glue import report
from finetune.glue import task as glue
from finetune.papers import glue_metrics
from finetune.papers.spaces import Cell
from finetune.search import best_model
from finetune.search.classification import exported_task, make_problem
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.search.summary import Record
from finetune.search.texts import Encoding
from pretrain.command import fields


class Glue:
  """A search for each task, or for each fraction of its training set; a `driver.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads the data of every task, so that what is wrong is reported before anything compiles.

    Raises:
      ConfigError: more training rows asked for than any task has, and others.
      UserError: see data/errors.py.
    """
    self.session, self.config = session, session.config
    names = validate.task_names(fields.flatten(session.config))
    cells = {name: session.cells(name) for name in names}
    self.data: dict[str, glue.GlueData] = {}  # of each task
    self.tests: dict[str, glue_predictions.Tests] = {}  # of each task, if they are to be predicted
    self.plans: list[Plan] = []
    self.parts: dict[str, tuple[str, float]] = {}  # plan -> task, fraction of its training set
    for name in names:
      self.data[name] = self._load(name, download=download)
      if session.config.output.predict:
        self.tests[name] = glue_predictions.load(
          name, session.config.data.directory, self.encoding, download=download
        )
      for plan_name, fraction, seeds in self._searches(name):
        self.parts[plan_name] = name, fraction
        split = self.data[name]
        if fraction < 1:
          split = glue.take_fraction(split, fraction, seeds[0])
        self.plans.append(self._plan(plan_name, split, cells[name], seeds))
    self._check_train_rows()

  def _check_train_rows(self) -> None:
    rows, sizes = self.config.data.train_rows, {name: len(data.train.ids) for name, data in self.data.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    if rows > sizes[largest]:
      raise ConfigError(
        f"data.train_rows={rows}: {largest} has {sizes[largest]:,} training rows, no task has more; use fewer"
      )

  def encoding(self, task: str) -> Encoding:
    """How the texts of a task become ids."""
    data = self.config.data
    divisor = self.session.protocol.stsb_divisor if TASKS[task].is_regression else 1.0
    longest = self.session.max_length("mnli" if task == "ax" else task)
    return Encoding(self.session.start.vocabulary, longest, data.buckets, data.bucket_multiple, divisor)

  def _load(self, task: str, *, download: bool) -> glue.GlueData:
    data = self.config.data
    return glue.load(
      task,
      data.directory,
      self.encoding(task),
      train_rows=data.train_rows,
      seed=self.config.seed,
      download=download,
    )

  def _searches(self, task: str) -> Iterator[tuple[str, float, Sequence[int]]]:
    """(name, fraction, seeds) of a task's searches; every seed draws its own part, so has its own search."""
    seeds = self.session.seeds
    if not self.config.data.fractions:
      yield task, 1.0, seeds
    for fraction in sorted(self.config.data.fractions):
      if fraction == 1:
        yield f"{task}-{fraction}", 1.0, seeds
        continue
      for seed in seeds:
        yield f"{task}-{fraction}-seed{seed}", fraction, [seed]

  def _plan(self, name: str, data: glue.GlueData, cells: list[Cell], seeds: Sequence[int]) -> Plan:
    session, output = self.session, self.config.output
    size = self.config.data.eval_batch_size
    tests = self.tests[data.task].sets if self.tests else {}

    def evaluate(outputs_of: OutputsOf, seeds: Sequence[int]) -> list[dict[str, float]]:
      return glue.evaluate(data, outputs_of, num_runs=len(seeds), batch_size=size, pad_id=session.pad_id)

    return session.plan(
      name,
      make_problem(session.encoder, session.head, num_outputs=data.num_outputs, pad_id=session.pad_id),
      glue_metrics.main_metric(data.task, session.protocol.name),
      cells,
      data.train,
      data.buckets,
      evaluate,
      eval_lengths=[
        length for one in (*data.dev.values(), *tests.values()) for length in one.buckets.lengths
      ],
      digest=data.digest,
      max_length=session.max_length(data.task),
      seeds=seeds,
      keeps_weights=not self.config.data.fractions and (output.save_model or output.predict),
    )

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    lines = [self.session.describe(fresh_head="classification")]
    for task, data in self.data.items():
      tests = self.tests[task].lines if self.tests else []
      lines += [*data.lines, *tests, *self._describe_searches(task)]
    if self.config.data.fractions and self.config.output.save_model:
      lines.append("no model is saved with data.fractions")
    return lines

  def _describe_searches(self, task: str) -> list[str]:
    lines = []
    plans = [plan for plan in self.plans if self.parts[plan.name][0] == task]
    for (_, fraction), alike in itertools.groupby(plans, lambda plan: self.parts[plan.name]):
      first = next(alike)
      lines.append(first.describe())
      if self.config.data.fractions:
        rows, most = first.num_examples, len(self.data[task].train.ids)
        own = "" if fraction == 1 else ", drawn by each seed for itself, with a search of its own"
        lines.append(f"{task}: {rows:,} of {most:,} training examples{own}")
    return lines

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model and predicts the test sets, unless they are there."""
    if not search.plan.keeps_weights:
      return
    task, output = search.plan.name, self.config.output
    chosen = best_model.choose(search, records, seeds=self.session.test_seeds if output.predict else ())
    if output.save_model:
      exported = exported_task(TASKS[task].name, TASKS[task].labels, self.session.head)
      best_model.save(search, chosen, exported, output_scale=self.encoding(task).divisor)
    if output.predict and not glue_predictions.is_there(self.session, task, chosen, self.tests[task]):
      trained = search.trained(chosen.cell, chosen.seed)
      glue_predictions.predict(self.session, task, chosen, trained.outputs_of, self.tests[task])

  @property
  def _subsets(self) -> list[str]:
    return [task for task, data in self.data.items() if not data.is_official]

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """The papers' table, or that of the fractions; writes the leaderboard's zip."""
    session = self.session
    if self.config.data.fractions:
      return self._report_fractions(records)
    if self.config.output.predict:
      for line in glue_predictions.submit(session, self.tests, self.data):
        session.say(line)
    return report.make_report(
      session.title,
      session.protocol,
      records,
      subsets=self._subsets,
      references=session.references,
    )

  def _report_fractions(self, records: Mapping[str, Sequence[Record]]) -> Report:
    by_fraction: dict[str, dict[float, list[Record]]] = {task: {} for task in self.data}
    examples: dict[str, dict[float, int]] = {task: {} for task in self.data}
    for (task, fraction), plans in itertools.groupby(self.plans, lambda plan: self.parts[plan.name]):
      alike = list(plans)
      by_fraction[task][fraction] = report_fractions.merge([records[plan.name] for plan in alike])
      examples[task][fraction] = alike[0].num_examples
    return report_fractions.make_report(self.session.title, by_fraction, examples, subsets=self._subsets)
