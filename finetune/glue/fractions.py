"""Scores over fractions of training sets, mean with smallest and largest as COCO-LM figure 7 draws them."""

from collections.abc import Collection, Mapping, Sequence

from data import tables
from finetune.papers import glue_metrics
from finetune.search import summary
from finetune.search.summary import Record


def merge(searches: Sequence[Sequence[Record]]) -> list[Record]:
  """The same cells, in the same order, searched seed by seed: as records of all seeds."""
  merged = []
  for records in zip(*searches, strict=True):
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
) -> tables.Report:
  """Chooses the cell of each fraction and makes `fractions.md`, `.csv` and `.json` of their scores.

  By task and fraction, `records` are finished cells in the order of the search (a fraction without any is
  left out) and `examples` numbers of training examples. The data of `subsets` is not the official one.
  """
  rows = []
  for task, by_fraction in records.items():
    for fraction in sorted(fraction for fraction in by_fraction if by_fraction[fraction]):
      chosen = summary.choose(by_fraction[fraction], by_fraction[fraction][0].metric, "mean")
      rows += [
        {
          "task": task,
          "is_official": task not in subsets,
          "fraction": fraction,
          "examples": examples[task][fraction],
          "metric": name,
          "cell": chosen.cell.name,
          **summary.summarise(chosen, name).values(),
        }
        for name in summary.metrics(chosen)
      ]
  title = f"GLUE dev over fractions of the training set, {title}"
  return tables.Report("fractions", title, _COLUMNS, rows, _notes(rows))


def _task(row: tables.Row) -> str:
  # Both halves of MNLI are called MNLI, and told apart by the metric.
  return glue_metrics.shown_task(row["task"], "").removesuffix("-m")


def _part(row: tables.Row) -> str:
  return f"{100 * row['fraction']:g} %"


_COLUMNS = (
  tables.Column("task", lambda row: _task(row) + ("" if row["is_official"] else "*"), "left"),
  tables.Column("part", _part),
  tables.Column("examples", lambda row: f"{row['examples']:,}"),
  tables.text_column("metric", "metric"),
  tables.percent_column("mean", "mean"),
  tables.percent_column("min", "minimum"),
  tables.percent_column("max", "maximum"),
  tables.percent_column("std", "std"),
  summary.seeds_column("all seeds"),
)


def _notes(rows: Sequence[tables.Row]) -> list[str]:
  notes = [
    "Mean over seeds in percent; each seed draws its own part of the training set. A run counts with its "
    "best evaluation of the dev set."
  ]
  if subsets := dict.fromkeys(_task(row) for row in rows if not row["is_official"]):
    notes.append(
      f"* subset of the official data, not a GLUE score: {', '.join(subsets)}; fractions are of the subset."
    )
  return notes + summary.skipped_notes({f"{_task(row)} {_part(row)}": row["skipped_updates"] for row in rows})
