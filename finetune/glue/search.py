"""`kind='glue'`: a hyperparameter search for each GLUE task, its table, and the leaderboard's zip."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from data import errors, glue, tables
from data.glue.tasks import TASKS
from data.tables import Report
from finetune import validate
from finetune.glue import predictions as glue_predictions
from finetune.glue.task import OPTIONAL, GlueData, load
from finetune.papers import glue_metrics
from finetune.papers.glue_metrics import DEV_SPLITS, MISMATCHED, NAMES, Reference
from finetune.papers.protocols import Cell, Protocol
from finetune.search import examples
from finetune.search import results as summary
from finetune.search.examples import Encoding
from finetune.search.problem import OutputsOf, exported_task, make_problem
from finetune.search.results import Record
from finetune.search.search import Search
from finetune.search.session import Plan, Session
from pretrain.settings import fields

logger = logging.getLogger(__name__)


def evaluate(data: GlueData, outputs_of: OutputsOf, *, batch_size: int, pad_id: int) -> dict[str, float]:
  """Returns a run's metrics on the development sets; on MNLI's mismatched set, 'accuracy_mm'.

  A run with NaN or infinite outputs scores 0, so that the other runs can continue.
  """
  metrics: dict[str, float] = {}
  suffixes, sizes = DEV_SPLITS.get(data.task, {"dev": ""}), {"batch_size": batch_size, "pad_id": pad_id}
  for name, dev_set in data.dev.items():
    logits = examples.outputs(dev_set.examples, dev_set.buckets, outputs_of, **sizes)
    scores = glue_metrics.score_of_run(data.task, np.stack(logits), np.asarray(dev_set.split.labels))
    metrics |= {f"{metric}{suffixes[name]}": value for metric, value in scores.items()}
  return metrics


_AVERAGE = "AVG of 8"


def make_report(
  title: str,
  protocol: Protocol,
  records: Mapping[str, Sequence[Record]],
  *,
  subsets: Collection[str] = (),
  references: Sequence[Reference] = (),
) -> tables.Report:
  """Chooses each task's best cell and returns the report `results` (.md, .csv, .json) of its scores.

  The rows are the tasks' metrics; `value` is the summary that the protocol reports. The total is the average
  of the eight tasks, None if one is missing or has no finished cell. Tasks in `subsets` do not have the whole
  official data.
  """
  names = list(NAMES)
  rows: list[dict[str, Any]] = []
  for task in sorted(records, key=lambda task: (names.index(task) if task in names else len(names), task)):
    if records[task]:
      rows += _task_rows(task, records[task], protocol, references, is_official=task not in subsets)
  judged = [row for row in rows if row["is_main"]]
  values = {row["task"]: row["value"] for row in judged}
  missing = [task for task in glue_metrics.AVERAGED if task not in values]
  totals = []
  if rows:
    average = None if missing else glue_metrics.average(values)
    beside = {reference.model: reference.average_of_eight() for reference in references}
    totals.append({"task": _AVERAGE, "metric": "", "is_main": False, "value": average, **beside})
  columns = [
    tables.Column("task", _shown_task, "left"),
    tables.Column("metric", lambda row: glue_metrics.shown_metric(row["metric"]), "left"),
    *summary.score_columns(protocol.summary, [reference.model for reference in references]),
  ]
  seeds = tables.Table((tables.Column("task", _shown_task, "left"), *_SEED_COLUMNS), judged)
  title = f"GLUE dev, {title}, protocol {protocol.name}"
  notes = _notes(protocol, judged, missing, references)
  return tables.Report("results", title, columns, rows, notes, [seeds], totals)


_SEED_COLUMNS = (tables.text_column("cell", "cell"), summary.seeds_column("all seeds"))


def _task_rows(
  task: str,
  records: Sequence[Record],
  protocol: Protocol,
  references: Sequence[Reference],
  *,
  is_official: bool,
) -> list[dict[str, Any]]:
  main = records[0].metric
  chosen = summary.choose(records, main, protocol.summary)
  rows = []
  for name in summary.metrics(chosen):
    if protocol.is_pooled:
      over_runs, cell = summary.pool(records, name), errors.counted(len(records), "cell")
    else:
      over_runs, cell = summary.summarise(chosen, name), chosen.cell.name
    column = task if name == main else "mnli_mm" if name == MISMATCHED else ""
    rows.append(
      {
        "task": task,
        "metric": name,
        "is_main": name == main,
        "is_official": is_official,
        "cell": cell,
        "value": summary.score(over_runs, protocol.summary),
        **over_runs.values(),
        **glue_metrics.scores_beside(references, column),
      }
    )
  return rows


def _shown_task(row: tables.Row) -> str:
  """Returns a task's name in the papers, starred if its data is not official; '' on its further rows."""
  if row["task"] == _AVERAGE:
    return _AVERAGE
  name = glue_metrics.shown_task(row["task"], row["metric"])
  name = name if row["is_official"] else f"{name}*"
  return name if row["is_main"] or row["metric"] == MISMATCHED else ""


def _notes(
  protocol: Protocol, rows: Sequence[tables.Row], missing: Sequence[str], references: Sequence[Reference]
) -> list[str]:
  if protocol.is_pooled:
    how = f"{protocol.summary.capitalize()} of all runs of all cells"
  else:
    how = f"{protocol.summary.capitalize()} over the seeds of the cell with the best {protocol.summary}"
  notes = [
    f"{how}, in percent. All metrics of a run are from its best evaluation on the dev set. std: standard "
    "deviation of the sample."
  ]
  if rows and missing:
    names = ", ".join(NAMES[task] for task in missing)
    notes.append(f"No AVG: {names} missing. AVG is the mean of eight tasks: MNLI-m counts, WNLI does not.")
  if subsets := [_shown_task(row).removesuffix("*") for row in rows if not row["is_official"]]:
    of_average = "" if missing else " AVG is not one either."
    notes.append(f"* not the whole official data, so not a GLUE score: {', '.join(subsets)}.{of_average}")
  notes += summary.skipped_notes({_shown_task(row): row["skipped_updates"] for row in rows})
  notes += glue_metrics.source_notes(references)
  if others := [reference for reference in references if reference.averages_mismatched]:
    averages = ", ".join(f"{reference.model} {tables.percent(reference.average)}" for reference in others)
    notes.append(f"The paper's averages are of nine scores, with both halves of MNLI: {averages}.")
  return notes


class Glue:
  """Fine-tuning on GLUE: a hyperparameter search for each task. Implements `search.Kind`."""

  def __init__(self, session: Session, *, download: bool) -> None:
    """Reads the data of all tasks, so that errors in it (UserErrors) are raised before anything compiles."""
    self.session, self.config, data = session, session.config, session.config.data
    names = validate.task_names(fields.flatten(session.config))
    cells = {name: session.cells(name) for name in names}
    splits = [(name, split) for name in names for split in TASKS[name].sizes if split not in OPTIONAL]
    wanted = [(name, split) for name, split in splits if not split.startswith("test")]
    glue.check(data.directory, wanted, download=download)  # before the first of them is read
    self.data: dict[str, GlueData] = {}  # by task
    self.tests: dict[str, glue_predictions.Tests] = {}  # by task, with output.predict
    self.plans: list[Plan] = []
    for name in names:
      options = {"train_rows": data.train_rows, "seed": self.config.seed, "download": download}
      self.data[name] = load(name, data.directory, self.encoding(name), **options)
      if session.config.output.predict:
        self.tests[name] = glue_predictions.load(name, data.directory, self.encoding, download=download)
      self.plans.append(self._plan(self.data[name], cells[name]))

  def encoding(self, task: str) -> Encoding:
    """Returns the encoding of a task's texts: vocabulary, lengths and scale of targets."""
    data = self.config.data
    divisor = self.session.protocol.stsb_divisor if TASKS[task].is_regression else 1.0
    longest = self.session.max_length("mnli" if task == "ax" else task)
    vocabulary = self.session.start.encoder.vocabulary
    return Encoding(vocabulary, longest, data.buckets, data.bucket_multiple, divisor)

  def _plan(self, data: GlueData, cells: list[Cell]) -> Plan:
    session, size = self.session, self.config.data.eval_batch_size
    return session.plan(
      data.task,
      make_problem(session.encoder, session.head, num_outputs=data.num_outputs, pad_id=session.pad_id),
      glue_metrics.main_metric(data.task, session.protocol.name),
      cells,
      data.train,
      data.buckets,
      lambda outputs_of, seed: evaluate(data, outputs_of, batch_size=size, pad_id=session.pad_id),
      digest=data.digest,
      max_length=session.max_length(data.task),
    )

  def describe(self) -> list[str]:
    """Returns lines about the checkpoint, the data and the planned runs."""
    lines = [self.session.describe(fresh_head="classification")]
    for plan in self.plans:
      tests = self.tests[plan.name].lines if self.tests else []
      lines += [*self.data[plan.name].lines, *tests, plan.describe()]
    return lines

  def finish(self, search: Search, records: Sequence[Record]) -> None:
    """Saves the best run's model and test predictions, unless they are already saved."""
    task, output = search.plan.name, self.config.output
    if not (output.save_model or output.predict):
      return
    is_predicted = output.predict and bool(self.tests[task].sets)
    chosen = search.choose(records, seeds=self.session.test_seeds if is_predicted else ())
    if output.save_model:
      exported = exported_task(TASKS[task].name, TASKS[task].labels, self.session.head)
      search.save_model(chosen, exported, output_scale=self.encoding(task).divisor)
    if is_predicted and not glue_predictions.is_there(self.session, task, chosen, self.tests[task]):
      trained = search.trained(chosen.cell, chosen.seed)
      glue_predictions.predict(self.session, task, chosen, trained.outputs_of, self.tests[task])

  def report(self, records: Mapping[str, Sequence[Record]]) -> Report:
    """Returns the table of scores, next to the papers'; with output.predict, writes the leaderboard's zip."""
    session = self.session
    if self.config.output.predict:
      for line in glue_predictions.submit(session, self.tests, self.data):
        logger.info(line)
    return make_report(
      session.title,
      session.protocol,
      records,
      subsets=[task for task, data in self.data.items() if not data.is_official],
      references=session.references,
    )
