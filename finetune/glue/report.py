"""The report of a GLUE search: each task's best cell and its seeds, next to the papers' scores."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from data import errors, tables
from finetune.papers import glue_metrics, reference_rows
from finetune.papers.glue_metrics import MISMATCHED, NAMES
from finetune.papers.protocols import Protocol
from finetune.papers.reference_rows import Reference
from finetune.search import summary
from finetune.search.summary import Record

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
        **reference_rows.scores_beside(references, column),
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
  notes += reference_rows.source_notes(references)
  if others := [reference for reference in references if reference.averages_mismatched]:
    averages = ", ".join(f"{reference.model} {tables.percent(reference.average)}" for reference in others)
    notes.append(f"The paper's averages are of nine scores, with both halves of MNLI: {averages}.")
  return notes
