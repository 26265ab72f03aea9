"""The report of a task on a user's file: scores over seeds, scores by class, confused classes."""

from collections.abc import Sequence

from data import tables
from data.errors import counted
from finetune.own.metrics import ERRORS
from finetune.own.schema import TaskSchema
from finetune.search import summary
from finetune.search.summary import Record


def make_report(
  title: str,
  schema: TaskSchema,
  records: Sequence[Record],
  of_best: Sequence[tables.Table],
  *,
  statistic: str,
  rows: int,
) -> tables.Report:
  """Makes the report (`results.md`, `.csv`, `.json`) of finished cells, evaluated on `rows` rows.

  `of_best` are tables of the best run's answers; `statistic` is 'median' or 'mean', as in the search.
  """
  metric = records[0].metric
  chosen = summary.choose(records, metric, statistic)
  scores = [
    {
      "metric": name,
      "is_main": name == metric,
      "cell": chosen.cell.name,
      "value": summary.score(summary.summarise(chosen, name), statistic),
      **summary.summarise(chosen, name).values(),
    }
    for name in summary.metrics(chosen)
  ]
  columns = [
    tables.text_column("metric", "metric"),
    *(_number_column(name, key) for name, key in (("score", "value"), ("std", "std"), ("min", "minimum"))),
    _number_column("max", "maximum"),
    tables.Column("all seeds", _seeds, "left"),
  ]
  others = [
    {"cell": record.cell.name, "value": summary.score(summary.summarise(record), statistic)}
    for record in records
  ]
  cells = tables.Table((tables.text_column("cell", "cell"), tables.percent_column(metric, "value")), others)
  notes = [
    f"Cell {chosen.cell.name}; {statistic} over {counted(len(chosen.seeds), 'seed')}, {_unit(schema)}. A "
    f"run's score is its best evaluation on {counted(rows, 'development row')}; the tables show the best "
    "run. It was chosen on these rows, so its scores on new rows may be slightly lower.",
    *summary.skipped_notes({"own": summary.summarise(chosen).skipped_updates}),
  ]
  shown = [*of_best, *([cells] if len(records) > 1 else [])]
  return tables.Report("results", f"{_title(schema)}, {title}", columns, scores, notes, shown)


def of_one(
  title: str, schema: TaskSchema, scores: dict[str, float], of_answers: Sequence[tables.Table], *, rows: int
) -> tables.Report:
  """Returns the report of one model's `scores` on `rows` rows; `of_answers` are tables of its answers."""
  found = [{"metric": name, "value": value, "rows": rows} for name, value in scores.items()]
  columns = [tables.text_column("metric", "metric"), _number_column("score", "value")]
  notes = [f"{counted(rows, 'row')}; {_unit(schema)}."]
  return tables.Report("results", f"{_title(schema)}, {title}", columns, found, notes, of_answers)


def _title(schema: TaskSchema) -> str:
  return schema.kind.capitalize().replace("_", " ")


def _unit(schema: TaskSchema) -> str:
  return f"in percent but for {', '.join(ERRORS)}" if schema.kind == "regression" else "in percent"


def _number(row: tables.Row, value: float) -> str:
  return f"{value:.4g}" if row["metric"] in ERRORS else tables.percent(value)


def _number_column(header: str, key: str) -> tables.Column:
  return tables.Column(header, lambda row: _number(row, row[key]))


def _seeds(row: tables.Row) -> str:
  return "  ".join(_number(row, value) for value in row["per_seed"].values())
