"""The report of prompts: mean and standard deviation over the splits, next to the papers' scores."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from data import errors, tables
from finetune.papers import glue_metrics
from finetune.search import summary
from finetune.search.summary import Record

SOURCE = "COCO-LM table 4"
# {model: {metric of mnli: (mean, standard deviation)}} in percent, over LM-BFF's five splits.
REFERENCES: dict[str, dict[str, tuple[float, float]]] = {
  "RoBERTa base++": {"accuracy": (60.1, 1.5), "accuracy_mm": (61.8, 1.2)},
  "COCO-LM base++": {"accuracy": (66.5, 2.1), "accuracy_mm": (68.0, 2.3)},
  "RoBERTa large++": {"accuracy": (70.7, 1.3), "accuracy_mm": (72.0, 1.2)},
  "COCO-LM large++": {"accuracy": (72.0, 1.5), "accuracy_mm": (73.3, 1.1)},
}
_DEV = "k-shot dev"  # the set of a row without a test set
_PART = "* The test set is not GLUE's complete development set, so it is not the papers' test set."
_NO_TEST = (
  "** No test set. The scores are on the k-shot development sets that chose the runs: they are too high."
)


class TaskScores(NamedTuple):
  """The chosen runs of a task, one for each split, with their development and test scores."""

  chosen: Sequence[Record]  # each of one run, the best on the development set of its split
  tested: Sequence[Record]  # the same runs with test metrics; empty without a test set
  is_official: bool  # whether the test set is GLUE's complete development set


def make_report(title: str, scores: Sequence[TaskScores]) -> tables.Report:
  """Returns the report `prompt` (.md, .csv, .json) of the chosen runs of each task."""
  rows = [row for task in scores for row in _task_rows(task)]
  references = REFERENCES if any(row["task"] == "mnli" for row in rows) else {}
  columns = [
    tables.Column("task", _shown_task, "left"),
    tables.Column("metric", lambda row: glue_metrics.shown_metric(row["metric"]), "left"),
    tables.Column("mean (std)", lambda row: f"{tables.percent(row['mean'])} ({tables.percent(row['std'])})"),
    *(_reference_column(model) for model in references),
  ]
  judged = [row for row in rows if row["is_main"]]
  runs = [{**row, "split": split} for row in judged for split in row["cells"]]
  notes = [
    f"Mean and standard deviation in percent over {errors.counted(len(scores[0].chosen), 'split')} (of the "
    "population, as in LM-BFF). For each split, its development set chooses the cell and the evaluation."
  ]
  marks = {_mark(row) for row in rows}
  notes += [note for mark, note in (("*", _PART), ("**", _NO_TEST)) if mark in marks]
  if references:
    notes.append(f"RoBERTa and COCO-LM: {SOURCE}, over five splits, on GLUE's development sets.")
  details = [tables.Table(_RUN_COLUMNS, runs)]
  return tables.Report("prompt", f"Prompts with demonstrations, {title}", columns, rows, notes, details)


def _task_rows(scores: TaskScores) -> list[dict[str, Any]]:
  main, task, scored = scores.chosen[0].metric, scores.chosen[0].task, scores.tested or scores.chosen
  rows = []
  for metric in summary.metrics(scored[0]):
    over_splits = summary.pool(scored, metric, ddof=0)
    row = {
      "task": task,
      "metric": metric,
      "is_main": metric == main,
      "set": "test" if scores.tested else _DEV,
      "is_official": scores.is_official,
      "mean": over_splits.mean,
      "std": over_splits.std,
      "splits": len(scored),
      "per_split": _by_split(scored, metric),
      "cells": {split: record.cell.name for record in scored for split in record.seeds},
      "dev": _by_split(scores.chosen, main),
    }
    rows.append(row)
  return rows


def _by_split(records: Sequence[Record], metric: str) -> dict[int | str, float]:
  return {
    split: value for record in records for split, value in summary.summarise(record, metric).per_seed.items()
  }


def _mark(row: tables.Row) -> str:
  """Returns the mark after the task's name that refers to a note: '', '*' or '**'."""
  return "" if row["is_official"] else "**" if row["set"] == _DEV else "*"


def _shown_task(row: tables.Row) -> str:
  return glue_metrics.shown_task(row["task"], row["metric"]) + _mark(row)


def _reference_column(model: str) -> tables.Column:
  def show(row: tables.Row) -> str:
    if row["task"] != "mnli":
      return ""
    mean, std = REFERENCES[model][row["metric"]]
    return f"{mean:.1f} ({std:.1f})"

  return tables.Column(model, show)


def _tested(row: tables.Row) -> str:
  return "-" if row["set"] == _DEV else tables.percent(row["per_split"][row["split"]])


_RUN_COLUMNS = (
  tables.text_column("task", "task"),
  tables.Column("split", lambda row: str(row["split"])),
  tables.Column("chosen cell", lambda row: row["cells"][row["split"]], "left"),
  tables.Column("dev", lambda row: tables.percent(row["dev"][row["split"]])),
  tables.Column("test", _tested),
)
