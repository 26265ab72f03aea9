"""The table of prompts: mean and standard deviation over the splits, with the papers' rows beside it."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import rich.console

from finetune.papers import glue_metrics
from finetune.prompt import task as prompt
from finetune.prompt.task import Summary, Trial
from finetune.search import tables

STEM = "prompt"
SOURCE = "COCO-LM table 4"
# Column -> {metric of mnli: (mean, standard deviation)} in percent, over LM-BFF's five splits.
REFERENCES: dict[str, dict[str, tuple[float, float]]] = {
  "RoBERTa base++": {"accuracy": (60.1, 1.5), "accuracy_mm": (61.8, 1.2)},
  "COCO-LM base++": {"accuracy": (66.5, 2.1), "accuracy_mm": (68.0, 2.3)},
  "RoBERTa large++": {"accuracy": (70.7, 1.3), "accuracy_mm": (72.0, 1.2)},
  "COCO-LM large++": {"accuracy": (72.0, 1.5), "accuracy_mm": (73.3, 1.1)},
}


class TaskScores(NamedTuple):
  """A task's chosen runs.

  Attributes:
    task: its name.
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

  @property
  def summaries(self) -> dict[str, Summary]:
    """{metric: over the splits}, the one they were chosen by first."""
    measured = self.trials[0].test
    names = (self.metric, *(name for name in measured if name != self.metric))
    return {name: prompt.summarise(self.trials, name) for name in names}

  @property
  def mark(self) -> str:
    """Behind the task's name, for a footnote."""
    return "" if self.is_official else "*" if self.has_test else "**"


def page(title: str, scores: Sequence[TaskScores]) -> tables.Page:
  """The scores in percent, and the chosen runs."""
  with_papers = any(one.task == "mnli" for one in scores)
  references = REFERENCES if with_papers else {}
  headers = ("task", "metric", "mean (std)", *references)
  rows = []
  for one in scores:
    for metric, found in one.summaries.items():
      beside = [_pair(*given[metric]) if one.task == "mnli" else "" for given in references.values()]
      rows.append([_name(one, metric), *_measure(one, metric, found), *beside])
  first = tables.Table(headers, ("left", "left", *["right"] * (len(headers) - 2)), rows)
  chosen = [
    (one.task, str(trial.seed), trial.cell, tables.percent(trial.dev), _tested(one, trial))
    for one in scores
    for trial in one.trials
  ]
  second = tables.Table(
    ("task", "split", "chosen cell", "dev", "test"), ("left", "right", "left", "right", "right"), chosen
  )
  return tables.Page(f"Prompts with demonstrations, {title}", (first, second), _notes(scores, with_papers))


def _name(one: TaskScores, metric: str) -> str:
  if one.task == "mnli":
    return ("MNLI-mm" if metric == glue_metrics.MISMATCHED else "MNLI-m") + one.mark
  return glue_metrics.NAMES.get(one.task, one.task.upper()) + one.mark


def _measure(one: TaskScores, metric: str, found: Summary) -> tuple[str, str]:
  name = "accuracy" if metric == glue_metrics.MISMATCHED else metric
  return name, f"{tables.percent(found.mean)} ({tables.percent(found.std)})"


def _pair(mean: float, std: float) -> str:
  return f"{mean:.1f} ({std:.1f})"


def _tested(one: TaskScores, trial: Trial) -> str:
  return tables.percent(trial.test[one.metric]) if one.has_test else "-"


def _notes(scores: Sequence[TaskScores], with_papers: bool) -> list[str]:
  splits = len(scores[0].trials)
  found = [
    f"Mean and standard deviation (of the population, as LM-BFF) over {splits} splits, in percent. Each "
    "split has its own cell and evaluation, the best on its development set."
  ]
  if any(one.mark == "*" for one in scores):
    found.append("* a part of GLUE's development set, or another set: not the papers' test set.")
  if any(one.mark == "**" for one in scores):
    found.append(
      "** no test set: scores of the k-shot development sets the runs were chosen on, which are too high."
    )
  if with_papers:
    found.append(f"RoBERTa and COCO-LM: {SOURCE}, over five splits, on GLUE's development sets.")
  return found


def print_report(title: str, scores: Sequence[TaskScores]) -> None:
  """Prints the page to standard output."""
  tables.print_page(rich.console.Console(highlight=False), page(title, scores))


def write_report(workdir: str | os.PathLike, title: str, scores: Sequence[TaskScores]) -> list[pathlib.Path]:
  """Writes `prompt.md` (percent), `prompt.csv` and `prompt.json` (fractions); returns their paths.

  Raises:
    StorageError: a file cannot be written.
  """
  rows: list[dict[str, Any]] = [
    {
      "task": one.task,
      "metric": metric,
      "set": "test" if one.has_test else "k-shot dev",
      "is_official": int(one.is_official),
      "mean": found.mean,
      "std": found.std,
      "splits": len(one.trials),
      "per_split": ";".join(f"{trial.seed}={trial.test[metric]}" for trial in one.trials),
    }
    for one in scores
    for metric, found in one.summaries.items()
  ]
  content = {
    "title": title,
    "tasks": [
      {
        "task": one.task,
        "metric": one.metric,
        "has_test": one.has_test,
        "is_official": one.is_official,
        "scores": {name: {"mean": found.mean, "std": found.std} for name, found in one.summaries.items()},
        "chosen": [trial._asdict() for trial in one.trials],
      }
      for one in scores
    ],
    "references": {"source": SOURCE, "mnli": REFERENCES},
    "notes": page(title, scores).notes,
  }
  return tables.write(workdir, STEM, page(title, scores), rows, content)
