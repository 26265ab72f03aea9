"""`kind='glue'`: a search for each task, or for fractions of its training set, and the papers' table."""

import functools

import jax

from data.glue_tasks import TASKS
from finetune import (
  best_model,
  glue,
  glue_predictions,
  metrics,
  reference_rows,
  report,
  report_fractions,
  validate,
  warm_start,
)
from finetune.classification import make_problem
from finetune.session import Plan, Session, compiled
from finetune.summary import Record
from pretrain import fields


class GlueSearch:
  """All searches of a config."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads the data of every task, so that what is wrong is told before anything compiles.

    Args:
      session: of this start.
      download: whether TFDS may download what is missing.

    Raises:
      UserError: see data/errors.py.
    """
    self.session, self.config = session, session.config
    names = validate.task_names(fields.flatten(session.config))
    cells = {name: session.cells(name) for name in names}
    self.data: dict[str, glue.GlueData] = {}
    self.plans: list[Plan] = []
    self.fractions: dict[str, float] = {}  # plan -> part of the training set
    for name in names:
      for part, data in self._parts(name, download=download):
        plan_name = name if part is None else f"{name}-{part}"
        self.data[plan_name] = data
        self.fractions[plan_name] = part or 1.0
        self.plans.append(self._plan(plan_name, data, cells[name]))

  def encoding(self, task: str) -> glue.Encoding:
    """How the texts of a task become ids."""
    data = self.config.data
    divisor = self.session.protocol.stsb_divisor if TASKS[task].is_regression else 1.0
    longest = self.session.max_length("mnli" if task == "ax" else task)
    return glue.Encoding(self.session.start.vocabulary, longest, data.buckets, data.bucket_multiple, divisor)

  def _parts(self, task: str, *, download: bool):
    """(fraction or None, data) of each search of a task."""
    data = self.config.data
    load = functools.partial(
      glue.load, task, data.directory, self.encoding(task), seed=self.config.seed, download=download
    )
    if not data.fractions:
      yield None, load(train_rows=data.train_rows)
      return
    count = len(load().train.ids)
    for part in sorted(data.fractions):
      yield part, load(train_rows=max(1, round(part * count)))

  def _plan(self, name: str, data: glue.GlueData, cells: list) -> Plan:
    session = self.session
    problem = make_problem(session.encoder, session.head, num_outputs=data.num_outputs, pad_id=session.pad_id)
    size = self.config.data.eval_batch_size

    def evaluate(outputs_of, num_runs: int) -> list[dict[str, float]]:
      return glue.evaluate(data, outputs_of, num_runs=num_runs, batch_size=size, pad_id=session.pad_id)

    return Plan(
      name,
      problem,
      metrics.main_metric(data.task, session.protocol.name),
      cells,
      data.train,
      data.buckets,
      evaluate,
      tuple(length for one in data.dev.values() for length in one.buckets.lengths),
      data.digest,
      session.max_length(data.task),
    )

  def describe(self) -> list[str]:
    """What there is and what would be done."""
    start = warm_start.describe(self.session.start, used_heads={}, fresh_heads={"classification": None})
    lines = [f"{self.session.title}: {start}"]
    for plan in self.plans:
      lines += [*self.data[plan.name].lines, self.session.describe(plan)]
    return lines

  def run(self) -> int:
    """Searches, saves, reports; returns the exit code."""
    records: dict[str, list[Record]] = {}
    for plan in self.plans:
      search = self.session.search(plan)
      records[plan.name] = search.run(plan.cells, self.session.seeds)
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
    is_needed = output.predict and not glue_predictions.is_there(self.session, plan, chosen)
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
    )
    if is_needed and trained is not None:
      glue_predictions.predict(self.session, plan, chosen, trained, self.encoding)

  def _report(self, records: dict[str, list[Record]]) -> None:
    session = self.session
    if self.config.data.fractions:
      self._report_fractions(records)
      return
    found = report.make_report(
      session.title,
      session.protocol,
      records,
      subsets=[name for name, data in self.data.items() if not data.is_official],
      references=reference_rows.reference_rows(
        session.start.meta["config"].get("recipe", ""), session.protocol.name
      ),
    )
    report.print_report(found)
    report.write_report(session.workdir, found)
    session.say(f"The same as files: {session.workdir / 'results.md'}, results.csv and results.json")
    if self.config.output.predict:
      for line in glue_predictions.submit(session, self.plans):
        session.say(line)

  def _report_fractions(self, records: dict[str, list[Record]]) -> None:
    for task in dict.fromkeys(data.task for data in self.data.values()):
      plans = [plan for plan in self.plans if self.data[plan.name].task == task]
      found = report_fractions.make_report(
        self.session.title,
        task,
        {self.fractions[plan.name]: records[plan.name] for plan in plans},
        {self.fractions[plan.name]: len(plan.train.ids) for plan in plans},
        is_official=all(one.split.is_official for one in self.data[plans[0].name].dev.values()),
      )
      report_fractions.print_report(found)
      report_fractions.write_report(self.session.workdir, found)
