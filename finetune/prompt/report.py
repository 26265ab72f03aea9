"""The report of prompts: mean and standard deviation over the splits, with the papers' rows beside it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from finetune.papers import glue_metrics
from finetune.prompt import task as prompt
from finetune.prompt.task import Trial
from finetune.search import tables

SOURCE = "COCO-LM table 4"
# Column -> {metric of mnli: (mean, standard deviation)} in percent, over LM-BFF's five splits.
REFERENCES: dict[str, dict[str, tuple[float, float]]] = {
  "RoBERTa base++": {"accuracy": (60.1, 1.5), "accuracy_mm": (61.8, 1.2)},
  "COCO-LM base++": {"accuracy": (66.5, 2.1), "accuracy_mm": (68.0, 2.3)},
  "RoBERTa large++": {"accuracy": (70.7, 1.3), "accuracy_mm": (72.0, 1.2)},
  "COCO-LM large++": {"accuracy": (72.0, 1.5), "accuracy_mm": (73.3, 1.1)},
}
_DEV = "k-shot dev"  # in the rows: there is no test set
_PART = "* a part of GLUE's development set, or another set: not the papers' test set."
_NO_TEST = (
  "** no test set: scores of the k-shot development sets the runs were chosen on, which are too high."
)


class TaskScores(NamedTuple):
  """A task's chosen runs.

  Attributes:
    metric: by which they were chosen on their development sets.
    trials: one for each split.
    has_test: whether `Trial.test` is of a test set; else of the development set it was chosen on.
    is_official: whether the test set is GLUE's development set, whole.
  """

  task: str
  metric: str
  trials: Sequence[Trial]
  has_test: bool
  is_official: bool


def make_report(title: str, scores: Sequence[TaskScores]) -> tables.Report:
  """Makes `prompt.md`, `.csv` and `.json` of the chosen runs of each task."""
  rows = [row for task in scores for row in _task_rows(task)]
  references = REFERENCES if any(task.task == "mnli" for task in scores) else {}
  columns = [
    tables.Column("task", _shown_task, "left"),
    tables.Column("metric", lambda row: glue_metrics.shown_metric(row["metric"]), "left"),
    tables.Column("mean (std)", lambda row: f"{tables.percent(row['mean'])} ({tables.percent(row['std'])})"),
    *(_reference_column(model) for model in references),
  ]
  judged = [row for row in rows if row["is_main"]]
  runs = [{**row, "split": split} for row in judged for split in row["cells"]]
  notes = [
    f"Mean and standard deviation (of the population, as LM-BFF) over {len(scores[0].trials)} splits, in "
    "percent. Each split has its own cell and evaluation, the best on its development set."
  ]
  marks = {_mark(row) for row in rows}
  notes += [note for mark, note in (("*", _PART), ("**", _NO_TEST)) if mark in marks]
  if references:
    notes.append(f"RoBERTa and COCO-LM: {SOURCE}, over five splits, on GLUE's development sets.")
  details = [tables.Table(_RUN_COLUMNS, runs)]
  return tables.Report("prompt", f"Prompts with demonstrations, {title}", columns, rows, notes, details)


def _task_rows(scores: TaskScores) -> list[dict[str, Any]]:
  metrics = [scores.metric, *(name for name in scores.trials[0].test if name != scores.metric)]
  rows = []
  for metric in metrics:
    over_splits = prompt.summarise(scores.trials, metric)
    row = {
      "task": scores.task,
      "metric": metric,
      "is_main": metric == scores.metric,
      "set": "test" if scores.has_test else _DEV,
      "is_official": scores.is_official,
      "mean": over_splits.mean,
      "std": over_splits.std,
      "splits": len(scores.trials),
      "per_split": {trial.seed: trial.test[metric] for trial in scores.trials},
      "cells": {trial.seed: trial.cell for trial in scores.trials},
      "dev": {trial.seed: trial.dev for trial in scores.trials},
    }
    rows.append(row)
  return rows


def _mark(row: tables.Row) -> str:
  """Stands behind the task's name, for a note."""
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
