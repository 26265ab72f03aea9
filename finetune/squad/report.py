"""The table at the end of a SQuAD search: figures at the best threshold apart from those at threshold 0."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import rich.console

from finetune.glue import report
from finetune.papers.protocols import Protocol
from finetune.papers.reference_rows import Reference
from finetune.search import summary, tables
from finetune.search.summary import Record, Summary
from finetune.squad import answers as squad_answers
from finetune.squad import task as squad
from finetune.squad.task import SquadData

LABELS = {
  "best_f1": "F1, best threshold",
  "best_exact": "EM, best threshold",
  "f1_threshold_0": "F1, threshold 0",
  "exact_threshold_0": "EM, threshold 0",
  "f1": "F1",
  "exact": "EM",
}
_COLUMNS = {"best_f1": "squad_f1", "best_exact": "squad_em"}  # of the papers' tables


class Row(NamedTuple):
  """A metric of the chosen cell; numbers are fractions."""

  metric: str
  value: float  # what the protocol reports
  summary: Summary  # over the seeds


@dataclasses.dataclass(frozen=True)
class Report:
  """What a search found.

  Attributes:
    title: which checkpoint.
    protocol: that was run.
    data: on which.
    cell: name of the chosen one.
    num_cells: of the search.
    rows: the metric of choice first.
    references: the papers' rows; those without SQuAD are left out.
  """

  title: str
  protocol: Protocol
  data: SquadData
  cell: str
  num_cells: int
  rows: tuple[Row, ...]
  references: tuple[Reference, ...]


def make_report(
  title: str,
  protocol: Protocol,
  data: SquadData,
  records: Sequence[Record],
  *,
  references: Sequence[Reference] = (),
) -> Report:
  """Chooses the cell and sums up.

  Args:
    title: such as the checkpoint's name.
    protocol: of `protocols.get`.
    data: that was trained and scored on.
    records: finished cells in the order of the search.
    references: of `reference_rows`.

  Raises:
    DataError: no cell is finished.
  """
  names = squad.METRICS[data.version]
  chosen = summary.choose(records, names[0], protocol.summary)
  rows = []
  for name in names:
    found = summary.summarise(chosen, name)
    rows.append(Row(name, summary.score(found, protocol.summary), found))
  beside = tuple(reference for reference in references if "squad_f1" in reference.scores)
  beside = beside if data.version == "2.0" else ()
  return Report(title, protocol, data, chosen.cell.name, len(records), tuple(rows), beside)


def page(given: Report) -> tables.Page:
  """The report as tables, in percent."""
  head = ("metric", given.protocol.summary, "std", "min", "max")
  headers = (*head, *(reference.model for reference in given.references))
  rows = []
  for row in given.rows:
    found, column = row.summary, _COLUMNS.get(row.metric, "")
    numbers = [row.value, found.std, found.minimum, found.maximum]
    beside = [tables.percent(one.scores[column]) if column else "" for one in given.references]
    rows.append([LABELS[row.metric], *(tables.percent(number) for number in numbers), *beside])
  scores = tables.Table(headers, ("left", *["right"] * (len(headers) - 1)), rows)
  seeds = list(given.rows[0].summary.per_seed)
  by_seed = [
    [LABELS[row.metric], *(tables.percent(row.summary.per_seed[seed]) for seed in seeds)]
    for row in given.rows
  ]
  sides = ("left", *["right"] * len(seeds))
  every = tables.Table((given.cell, *(f"seed {seed}" for seed in seeds)), sides, by_seed)
  star = "" if given.data.is_official else "*"
  title = f"SQuAD {given.data.version} dev{star}, {given.title}, protocol {given.protocol.name}"
  return tables.Page(title, (scores, every), notes(given))


def notes(given: Report) -> list[str]:
  """What a reader has to know about the numbers."""
  how, data = given.protocol.summary, given.data
  found = [
    f"{how.capitalize()} over the seeds of the chosen cell, in percent: of {given.num_cells:,} that with the "
    f"best {how} of {LABELS[given.rows[0].metric]!r}. A run counts with its best evaluation, its other "
    "metrics are of the same."
  ]
  if data.version == "2.0":
    found.append(
      "Best threshold: that of the no-answer score is chosen on the scored questions themselves, as in the "
      f'papers. Threshold 0 looks at no answers. "No answer" to every question scores '
      f"{tables.percent(data.unanswerable)}."
    )
  if not data.is_official:
    found.append(
      f"* {len(data.dev.file.questions):,} questions of {data.dev.file.source}, not the official development "
      "set; not to be compared with the papers' figures."
    )
  if len(data.train.file.questions) != (official := squad_answers.OFFICIAL_TRAINING[data.version]):
    found.append(
      f"Trained on {len(data.train.file.questions):,} questions of {data.train.file.source}; the official "
      f"training set has {official:,}."
    )
  found += summary.skipped_notes({"SQuAD": given.rows[0].summary})
  for source in dict.fromkeys(reference.source for reference in given.references):
    models = ", ".join(reference.model for reference in given.references if reference.source == source)
    found.append(f"Papers' dev scores: {models} from {source}.")
  return found


def print_report(given: Report, console: rich.console.Console | None = None) -> None:
  """Prints it; None: to standard output."""
  tables.print_page(console or rich.console.Console(highlight=False), page(given))


def write_report(workdir: str | os.PathLike, given: Report) -> list[pathlib.Path]:
  """Writes `results.md` (percent), `results.csv` and `results.json` (fractions) and returns their paths.

  Raises:
    StorageError: a file cannot be written.
  """
  rows = [_csv_row(row, given) for row in given.rows]
  return tables.write(workdir, report.STEM, page(given), rows, as_json(given))


def as_json(given: Report) -> dict[str, Any]:
  """Everything in the report, JSON-able; numbers are fractions."""
  data = given.data
  return {
    "title": given.title,
    "protocol": given.protocol.name,
    "summary": given.protocol.summary,
    "version": data.version,
    "train": {"source": data.train.file.source, "dropped": len(data.train.features.dropped)},
    "dev": {
      "source": data.dev.file.source,
      "questions": len(data.dev.file.questions),
      "unanswerable": data.unanswerable,
      "is_official": data.is_official,
    },
    "cell": given.cell,
    "rows": [row._asdict() | {"summary": report.summary_json(row.summary)} for row in given.rows],
    "references": [reference._asdict() for reference in given.references],
    "notes": notes(given),
  }


def _csv_row(row: Row, given: Report) -> dict[str, Any]:
  found, column = row.summary, _COLUMNS.get(row.metric, "")
  return {
    "task": "squad",
    "metric": row.metric,
    "is_official": int(given.data.is_official),
    "cell": given.cell,
    "value": row.value,
    **{name: getattr(found, name) for name in ("median", "mean", "std", "minimum", "maximum")},
    "seeds": len(found.per_seed),
    "per_seed": ";".join(f"{seed}={value}" for seed, value in found.per_seed.items()),
    **{one.model: one.scores[column] if column else "" for one in given.references},
  }
