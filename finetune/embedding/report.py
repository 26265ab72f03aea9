"""The report of the embedding stage: scores on development rows, beside those of the encoder before it."""

from collections.abc import Mapping, Sequence

from data import tables
from data.errors import counted
from finetune.search import summary
from finetune.search.summary import Record


def make_report(
  title: str, records: Sequence[Record], before: Mapping[str, float], *, statistic: str, rows: int
) -> tables.Report:
  """Makes the report (`results.md`, `.csv`, `.json`) of finished cells, evaluated on `rows` rows.

  `before` has the encoder's scores before the stage, by metric; {} leaves them out. `statistic` is 'median'
  or 'mean', as in the search.
  """
  metric = records[0].metric
  chosen = summary.choose(records, metric, statistic)
  scores = []
  for name in summary.metrics(chosen):
    of_seeds = summary.summarise(chosen, name)
    known = {"before": before[name]} if name in before else {}
    scores.append({"metric": name, **known, "value": summary.score(of_seeds, statistic), **of_seeds.values()})
  columns = [
    tables.text_column("metric", "metric"),
    *([tables.percent_column("before", "before")] if before else []),
    *(tables.percent_column(*pair) for pair in (("score", "value"), ("std", "std"))),
    *(tables.percent_column(*pair) for pair in (("min", "minimum"), ("max", "maximum"))),
    summary.seeds_column("all seeds"),
  ]
  cells = [
    {"cell": one.cell.name, "value": summary.score(summary.summarise(one), statistic)} for one in records
  ]
  of_cells = tables.Table((tables.text_column("cell", "cell"), tables.percent_column(metric, "value")), cells)
  notes = [
    f"Cell {chosen.cell.name}; {statistic} over {counted(len(chosen.seeds), 'seed')}, in percent. A run's "
    f"score is its best evaluation on {counted(rows, 'development row')}, on which it was chosen.",
    *(["before: the same encoder and pooling without the stage."] if before else []),
    *summary.skipped_notes({"embedding": summary.summarise(chosen).skipped_updates}),
  ]
  return tables.Report(
    "results", f"Embedding, {title}", columns, scores, notes, [of_cells] if len(records) > 1 else []
  )
