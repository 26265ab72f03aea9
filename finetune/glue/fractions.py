"""Scores over fractions of training sets, mean with smallest and largest as COCO-LM figure 7 draws them."""

import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import rich.console

from finetune.glue import report
from finetune.papers import glue_metrics
from finetune.search import summary, tables
from finetune.search.summary import Record, Summary

STEM = "fractions"


class FractionRow(NamedTuple):
  """One metric of a task at one fraction.

  Attributes:
    task: its name.
    is_official: whether the task's data is the official one, whole but for the fraction.
    fraction: of the training set, in (0, 1].
    examples: that many.
    metric: its name.
    cell: name of the chosen cell, the best mean.
    summary: over seeds; a seed draws its own examples.
  """

  task: str
  is_official: bool
  fraction: float
  examples: int
  metric: str
  cell: str
  summary: Summary


class FractionReport(NamedTuple):
  """The fractions of each task, increasing."""

  title: str
  rows: tuple[FractionRow, ...]


def merge(parts: Sequence[Sequence[Record]]) -> list[Record]:
  """The same cells searched seed by seed, as records of all seeds.

  Args:
    parts: for each search its cells, in the same order.
  """
  merged = []
  for records in zip(*parts, strict=True):
    seeds = {seed: run for record in records for seed, run in record.seeds.items()}
    devices = tuple(dict.fromkeys(name for record in records for name in record.devices))
    seconds = sum(record.seconds for record in records)
    merged.append(records[0]._replace(seeds=seeds, devices=devices, seconds=seconds))
  return merged


def make_report(
  title: str,
  records: Mapping[str, Mapping[float, Sequence[Record]]],
  examples: Mapping[str, Mapping[float, int]],
  *,
  subsets: Collection[str] = (),
) -> FractionReport:
  """Chooses the cell of each fraction and sums up.

  Args:
    title: such as the checkpoint's name.
    records: {task: {fraction: finished cells in the order of the search}}; a fraction without any is left
      out.
    examples: {task: {fraction: number of training examples}}.
    subsets: tasks whose data is not the official one.
  """
  rows = []
  for task, by_fraction in records.items():
    for fraction in sorted(fraction for fraction in by_fraction if by_fraction[fraction]):
      main = by_fraction[fraction][0].metric
      chosen = summary.choose(by_fraction[fraction], main, "mean")
      measured = summary.best(next(iter(chosen.seeds.values())), main).metrics
      for name in (main, *(name for name in measured if name != main)):
        found = summary.summarise(chosen, name)
        number = examples[task][fraction]
        rows.append(FractionRow(task, task not in subsets, fraction, number, name, chosen.cell.name, found))
  return FractionReport(title, tuple(rows))


def page(made: FractionReport) -> tables.Page:
  """The report as a table in percent."""
  headers = ("task", "part", "examples", "metric", "mean", "min", "max", "std", "all seeds")
  sides = ("left", "right", "right", "left", "right", "right", "right", "right", "left")
  rows = []
  for row in made.rows:
    found = row.summary
    numbers = (found.mean, found.minimum, found.maximum, found.std)
    seeds = "  ".join(tables.percent(value) for value in found.per_seed.values())
    name = _name(row.task) + ("" if row.is_official else "*")
    share = f"{100 * row.fraction:g} %"
    rows.append(
      (name, share, f"{row.examples:,}", row.metric, *(tables.percent(value) for value in numbers), seeds)
    )
  notes = [
    "Mean over seeds in percent; each seed draws its own part of the training set. A run counts with its "
    "best evaluation of the dev set."
  ]
  if subsets := dict.fromkeys(_name(row.task) for row in made.rows if not row.is_official):
    notes.append(
      f"* subset of the official data, not a GLUE score: {', '.join(subsets)}; fractions are of the subset."
    )
  parts = {f"{_name(row.task)} {100 * row.fraction:g} %": row.summary for row in made.rows}
  notes += summary.skipped_notes(parts)
  return tables.Page(
    f"GLUE dev over fractions of the training set, {made.title}", [tables.Table(headers, sides, rows)], notes
  )


def _name(task: str) -> str:
  # Both halves of MNLI have one name here: the metric tells them apart.
  return glue_metrics.NAMES.get(task, task).removesuffix("-m")


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
    "rows": [row._asdict() | {"summary": report.summary_json(row.summary)} for row in made.rows],
  }
  return tables.write(workdir, STEM, page(made), [_csv_row(row) for row in made.rows], content)


def _csv_row(row: FractionRow) -> dict[str, Any]:
  found = row.summary
  return {
    "task": row.task,
    "is_official": int(row.is_official),
    "fraction": row.fraction,
    "examples": row.examples,
    "metric": row.metric,
    "cell": row.cell,
    **{name: getattr(found, name) for name in ("mean", "minimum", "maximum", "std", "median")},
    "seeds": len(found.per_seed),
    "per_seed": ";".join(f"{seed}={value}" for seed, value in found.per_seed.items()),
  }
