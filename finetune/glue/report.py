"""The table at the end of a GLUE search: per task the chosen cell, its seeds, the papers' row beside it."""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import rich.console

from finetune.papers import glue_metrics
from finetune.papers.glue_metrics import MISMATCHED, NAMES
from finetune.papers.protocols import Protocol
from finetune.papers.reference_rows import Reference
from finetune.search import summary, tables
from finetune.search.summary import Record, Summary

STEM = "results"


@dataclasses.dataclass(frozen=True)
class Row:
  """A metric of a task.

  Attributes:
    task: as in `metrics.METRICS`; another name is shown as it is.
    metric: its name.
    is_main: whether the task is judged by it.
    value: what the protocol reports, a fraction.
    cell: name of the chosen cell; where all are pooled, their number.
    summary: over the seeds.
    column: of `Reference.scores` that it is compared with; '': none.
    is_official: whether the task's data is the official one.
  """

  task: str
  metric: str
  is_main: bool
  value: float
  cell: str
  summary: Summary
  column: str
  is_official: bool

  @property
  def name(self) -> str:
    """As the papers write it, with a star if the data is not official."""
    name = NAMES.get(self.task, self.task)
    name = "MNLI-mm" if self.metric == MISMATCHED else name
    return name if self.is_official else f"{name}*"


@dataclasses.dataclass(frozen=True)
class Report:
  """What a search found.

  Attributes:
    title: which checkpoint.
    protocol: that was run.
    rows: main and other metrics, in the order of tasks.
    references: the papers' rows.
    average: of the eight tasks; None: some are missing.
    missing: the tasks of the eight that are missing.
  """

  title: str
  protocol: Protocol
  rows: tuple[Row, ...]
  references: tuple[Reference, ...]
  average: float | None
  missing: tuple[str, ...]


def make_report(
  title: str,
  protocol: Protocol,
  records: Mapping[str, Sequence[Record]],
  *,
  subsets: Collection[str] = (),
  references: Sequence[Reference] = (),
) -> Report:
  """Chooses each task's cell and sums up.

  Args:
    title: such as the checkpoint's name.
    protocol: of `protocols.get`.
    records: {task: its finished cells in the order of the search}; a task without any is missing.
    subsets: tasks whose data is not the official one.
    references: of `reference_rows`; the first is the model's own.
  """
  rows: list[Row] = []
  for task in sorted(
    records, key=lambda task: (list(NAMES).index(task) if task in NAMES else len(NAMES), task)
  ):
    if records[task]:
      rows += _task_rows(task, records[task], protocol, is_official=task not in subsets)
  values = {row.task: row.value for row in rows if row.is_main}
  missing = tuple(task for task in glue_metrics.AVERAGED if task not in values)
  average = None if missing else glue_metrics.average(values)
  return Report(title, protocol, tuple(rows), tuple(references), average, missing)


def _task_rows(task: str, records: Sequence[Record], protocol: Protocol, *, is_official: bool) -> list[Row]:
  main = records[0].metric
  chosen = summary.choose(records, main, protocol.summary)
  names = [
    main,
    *(name for name in summary.best(next(iter(chosen.seeds.values())), main).metrics if name != main),
  ]
  rows = []
  for name in names:
    if protocol.is_pooled:
      found, cell = summary.pool(records, name), f"{len(records)} cells"
    else:
      found, cell = summary.summarise(chosen, name), chosen.cell.name
    value = summary.score(found, protocol.summary)
    column = task if name == main else "mnli_mm" if name == MISMATCHED else ""
    rows.append(Row(task, name, name == main, value, cell, found, column, is_official))
  return rows


def page(report: Report) -> tables.Page:
  """The report as two tables: scores in percent beside the papers', and the cells with their seeds."""
  head = ("task", "metric", report.protocol.summary, "std", "min", "max")
  headers = (*head, *(reference.model for reference in report.references))
  rows = [_score_cells(row, report.references) for row in report.rows]
  averages = [tables.percent(reference.average_of_eight()) for reference in report.references]
  if report.rows:
    rows.append(["AVG of 8", "", tables.percent(report.average), "", "", "", *averages])
  scores = tables.Table(headers, ("left", "left", *["right"] * (len(headers) - 2)), rows)
  seeds = [
    (row.name, row.cell, "  ".join(tables.percent(value) for value in row.summary.per_seed.values()))
    for row in report.rows
    if row.is_main
  ]
  chosen = tables.Table(("task", "cell", "all seeds"), ("left", "left", "left"), seeds)
  return tables.Page(
    f"GLUE dev, {report.title}, protocol {report.protocol.name}", (scores, chosen), notes(report)
  )


def _score_cells(row: Row, references: Sequence[Reference]) -> list[str]:
  found = row.summary
  name = row.name if row.is_main or row.metric == MISMATCHED else ""
  metric = "accuracy" if row.metric == MISMATCHED else row.metric
  numbers = [row.value, found.std, found.minimum, found.maximum]
  beside = [
    tables.percent(reference.scores[row.column]) if row.column in reference.scores else ""
    for reference in references
  ]
  return [name, metric, *(tables.percent(number) for number in numbers), *beside]


def notes(report: Report) -> list[str]:
  """What a reader has to know about the numbers, a sentence or two each."""
  protocol = report.protocol
  if protocol.is_pooled:
    how = f"{protocol.summary.capitalize()} of all runs of all cells"
  else:
    how = f"{protocol.summary.capitalize()} over the seeds of the cell with the best {protocol.summary}"
  found = [
    f"{how}, in percent. A run counts with its best evaluation of the dev set; its other metrics are of that "
    "same evaluation. std: standard deviation of the sample."
  ]
  if report.rows and report.missing:
    names = ", ".join(NAMES[task] for task in report.missing)
    found.append(f"No AVG: {names} missing. It is the mean of eight, MNLI by its matched half, without WNLI.")
  if subsets := [row.name for row in report.rows if row.is_main and not row.is_official]:
    of_average = "" if report.average is None else " Nor is AVG."
    found.append(
      f"* subset, not a GLUE score: {', '.join(name.removesuffix('*') for name in subsets)}.{of_average}"
    )
  found += summary.skipped_notes({row.name: row.summary for row in report.rows if row.is_main})
  for source in dict.fromkeys(reference.source for reference in report.references):
    models = ", ".join(reference.model for reference in report.references if reference.source == source)
    found.append(f"Papers' dev scores: {models} from {source}.")
  if others := [reference for reference in report.references if reference.averages_mismatched]:
    averages = ", ".join(f"{reference.model} {tables.percent(reference.average)}" for reference in others)
    found.append(f"The paper's own averages are of nine, with both halves of MNLI: {averages}.")
  return found


def print_report(report: Report, console: rich.console.Console | None = None) -> None:
  """Prints the report; None: to standard output."""
  tables.print_page(console or rich.console.Console(highlight=False), page(report))


def write_report(workdir: str | os.PathLike, report: Report) -> list[pathlib.Path]:
  """Writes `results.md` (percent), `results.csv` and `results.json` (fractions) and returns their paths.

  Raises:
    StorageError: a file cannot be written.
  """
  rows = [_csv_row(row, report.references) for row in report.rows]
  return tables.write(workdir, STEM, page(report), rows, as_json(report))


def as_json(report: Report) -> dict[str, Any]:
  """Everything in the report, JSON-able; numbers are fractions."""
  return {
    "title": report.title,
    "protocol": report.protocol.name,
    "summary": report.protocol.summary,
    "rows": [dataclasses.asdict(row) | {"summary": summary_json(row.summary)} for row in report.rows],
    "average": report.average,
    "missing": list(report.missing),
    "references": [reference._asdict() for reference in report.references],
    "notes": notes(report),
  }


def summary_json(found: Summary) -> dict[str, Any]:
  """A summary, JSON-able."""
  by_seed = {"per_seed": found.per_seed, "skipped_updates": found.skipped_updates}
  texts = {name: {str(seed): value for seed, value in values.items()} for name, values in by_seed.items()}
  return found._asdict() | texts


def _csv_row(row: Row, references: Sequence[Reference]) -> dict[str, Any]:
  found = row.summary
  return {
    "task": row.task,
    "metric": row.metric,
    "is_main": int(row.is_main),
    "is_official": int(row.is_official),
    "cell": row.cell,
    "value": row.value,
    **{name: getattr(found, name) for name in ("median", "mean", "std", "minimum", "maximum")},
    "seeds": len(found.per_seed),
    "per_seed": ";".join(f"{seed}={value}" for seed, value in found.per_seed.items()),
    **{reference.model: reference.scores.get(row.column, "") for reference in references},
  }
