"""`kind='glue'`: a search for each task, or for fractions of its training set, and the papers' table."""

import itertools
from collections.abc import Iterator, Sequence

import jax

from data.errors import ConfigError
from data.glue.tasks import TASKS
from finetune import validate
from finetune.glue import fractions as report_fractions
from finetune.glue import predictions as glue_predictions
from finetune.glue import report
from finetune.glue import task as glue
from finetune.papers import glue_metrics
from finetune.search import best_model, warm_start
from finetune.search.classification import make_problem
from finetune.search.session import Plan, Session, compiled
from finetune.search.summary import Record
from finetune.search.texts import Encoding
from pretrain.command import fields


class GlueSearch:
  """All searches of a config."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads the data of every task, so that what is wrong is told before anything compiles.

    Args:
      session: of this start.
      download: whether TFDS may download what is missing.

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
        part = self.data[name]
        if fraction < 1:
          part = glue.take_fraction(part, fraction, seeds[0])
        self.plans.append(self._plan(plan_name, part, cells[name], seeds))
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

  def _plan(self, name: str, data: glue.GlueData, cells: list, seeds: Sequence[int]) -> Plan:
    session = self.session
    problem = make_problem(session.encoder, session.head, num_outputs=data.num_outputs, pad_id=session.pad_id)
    size = self.config.data.eval_batch_size
    tests = self.tests[data.task].sets if self.tests else {}

    def evaluate(outputs_of, num_runs: int) -> list[dict[str, float]]:
      return glue.evaluate(data, outputs_of, num_runs=num_runs, batch_size=size, pad_id=session.pad_id)

    return Plan(
      name,
      problem,
      glue_metrics.main_metric(data.task, session.protocol.name),
      cells,
      data.train,
      data.buckets,
      evaluate,
      tuple(length for one in (*data.dev.values(), *tests.values()) for length in one.buckets.lengths),
      data.digest,
      session.max_length(data.task),
      tuple(seeds),
    )

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    start = warm_start.describe(self.session.start, used_heads={}, fresh_heads={"classification": None})
    lines = [f"{self.session.title}: {start}"]
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
      lines.append(self.session.describe(first))
      if self.config.data.fractions:
        rows, most = len(first.train.ids), len(self.data[task].train.ids)
        own = "" if fraction == 1 else ", drawn by each seed for itself, with a search of its own"
        lines.append(f"{task}: {rows:,} of {most:,} training examples{own}")
    return lines

  def run(self) -> int:
    """Searches, saves, reports; returns the exit code."""
    records: dict[str, list[Record]] = {}
    for plan in self.plans:
      search = self.session.search(plan)
      records[plan.name] = search.run(plan.cells, plan.seeds)
      if not self.config.data.fractions:
        self._finish(plan, search, records[plan.name])
      if search.program.shapes:
        self.session.say(f"{plan.name}: {compiled(sorted(search.program.shapes))}")
      jax.clear_caches()  # the next task's programs are others
    self._report(records)
    return 0

  def _finish(self, plan: Plan, search, records: list[Record]) -> None:
    output, row = self.config.output, TASKS[self.data[plan.name].task]
    if not (output.save_model or output.predict):
      return
    chosen = best_model.choose(self.session, plan, search, records, with_test_seeds=output.predict)
    tests = self.tests.get(plan.name)
    is_needed = tests is not None and not glue_predictions.is_there(self.session, plan, chosen, tests)
    trained = best_model.train(
      self.session,
      plan,
      search,
      chosen,
      task={
        "name": row.name,
        "labels": list(row.labels) or None,
        "problem_type": "regression" if row.is_regression else "single_label_classification",
        "activation": self.session.head.activation,
      },
      is_needed=is_needed,
      output_scale=self.encoding(row.name).divisor,
    )
    if is_needed and tests is not None and trained is not None:
      glue_predictions.predict(self.session, plan, chosen, trained, tests)

  @property
  def _subsets(self) -> list[str]:
    return [task for task, data in self.data.items() if not data.is_official]

  def _report(self, records: dict[str, list[Record]]) -> None:
    session = self.session
    if self.config.data.fractions:
      self._report_fractions(records)
      return
    made = report.make_report(
      session.title,
      session.protocol,
      records,
      subsets=self._subsets,
      references=session.references,
    )
    made.publish(session.workdir, session.say)
    if self.config.output.predict:
      for line in glue_predictions.submit(session, self.plans, self.tests, self.data):
        session.say(line)

  def _report_fractions(self, records: dict[str, list[Record]]) -> None:
    by_fraction: dict[str, dict[float, list[Record]]] = {task: {} for task in self.data}
    examples: dict[str, dict[float, int]] = {task: {} for task in self.data}
    for (task, fraction), plans in itertools.groupby(self.plans, lambda plan: self.parts[plan.name]):
      alike = list(plans)
      by_fraction[task][fraction] = report_fractions.merge([records[plan.name] for plan in alike])
      examples[task][fraction] = len(alike[0].train.ids)
    made = report_fractions.make_report(self.session.title, by_fraction, examples, subsets=self._subsets)
    made.publish(self.session.workdir, self.session.say)
