"""Scores over fractions of a training set, mean with smallest and largest as COCO-LM figure 7 draws them."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.console

from finetune import report, summary, tables
from finetune.summary import Record, Summary

STEM = "fractions"


class FractionRow(NamedTuple):
  """One metric at one fraction.

  Attributes:
    fraction: of the training set, in (0, 1].
    examples: that many.
    metric: its name.
    cell: name of the chosen cell, the best mean.
    summary: over seeds; a seed draws its own examples.
  """

  fraction: float
  examples: int
  metric: str
  cell: str
  summary: Summary


class FractionReport(NamedTuple):
  """All fractions of a task, increasing."""

  title: str
  task: str
  rows: tuple[FractionRow, ...]
  is_official: bool


def make_report(
  title: str,
  task: str,
  records: Mapping[float, Sequence[Record]],
  examples: Mapping[float, int],
  *,
  is_official: bool = True,
) -> FractionReport:
  """Chooses the cell of each fraction and sums up.

  Args:
    title: such as the checkpoint's name.
    task: its name.
    records: {fraction: finished cells in the order of the search}; a fraction without any is left out.
    examples: {fraction: number of training examples}.
    is_official: whether the task's data is the official one.
  """
  rows = []
  for fraction in sorted(fraction for fraction in records if records[fraction]):
    main = records[fraction][0].metric
    chosen = summary.choose(records[fraction], main, "mean")
    measured = summary.best(next(iter(chosen.seeds.values())), main).metrics
    for name in (main, *(name for name in measured if name != main)):
      found = summary.summarise(chosen, name)
      rows.append(FractionRow(fraction, examples[fraction], name, chosen.cell.name, found))
  return FractionReport(title, task, tuple(rows), is_official)


def page(made: FractionReport) -> tables.Page:
  """The report as a table in percent."""
  headers = ("fraction", "examples", "metric", "mean", "min", "max", "std", "all seeds")
  sides = ("right", "right", "left", "right", "right", "right", "right", "left")
  rows = []
  for row in made.rows:
    found = row.summary
    numbers = (found.mean, found.minimum, found.maximum, found.std)
    seeds = "  ".join(tables.percent(value) for value in found.per_seed.values())
    share = f"{100 * row.fraction:g} %"
    rows.append(
      (share, f"{row.examples:,}", row.metric, *(tables.percent(value) for value in numbers), seeds)
    )
  name = report.NAMES.get(made.task, made.task).removesuffix("-m")
  notes = [
    "Mean over seeds in percent; each seed draws its own part of the training set. A run counts with its "
    "best evaluation of the dev set."
  ]
  if not made.is_official:
    notes.append("A subset of the official data, not a GLUE score; fractions are of the subset.")
  return tables.Page(
    f"{name} dev over fractions of the training set, {made.title}",
    [tables.Table(headers, sides, rows)],
    notes,
  )


def print_report(made: FractionReport, console: rich.console.Console | None = None) -> None:
  """Prints the report; None: to standard output."""
  tables.print_page(console or rich.console.Console(highlight=False), page(made))


def write_report(workdir: str | os.PathLike, made: FractionReport) -> list[pathlib.Path]:
  """Writes `fractions.md` (percent), `fractions.csv` and `fractions.json` (fractions); returns their paths.

  Raises:
    StorageError: a file cannot be written.
  """
  content = {
    "title": made.title,
    "task": made.task,
    "is_official": made.is_official,
    "rows": [row._asdict() | {"summary": report.summary_json(row.summary)} for row in made.rows],
  }
  return tables.write(workdir, STEM, page(made), [_csv_row(row) for row in made.rows], content)


def _csv_row(row: FractionRow) -> dict[str, Any]:
  found = row.summary
  return {
    "fraction": row.fraction,
    "examples": row.examples,
    "metric": row.metric,
    "cell": row.cell,
    **{name: getattr(found, name) for name in ("mean", "minimum", "maximum", "std", "median")},
    "seeds": len(found.per_seed),
    "per_seed": ";".join(f"{seed}={value}" for seed, value in found.per_seed.items()),
  }
