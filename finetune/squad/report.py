"""The report of a SQuAD search: scores at the best threshold and scores at threshold 0, each labelled."""

from collections.abc import Sequence

from data import errors, tables
from finetune.papers import reference_rows
from finetune.papers.protocols import Protocol
from finetune.papers.reference_rows import Reference
from finetune.search import summary
from finetune.search.summary import Record
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
_PAPERS_COLUMNS = {"best_f1": "squad_f1", "best_exact": "squad_em"}


def make_report(
  title: str,
  protocol: Protocol,
  data: SquadData,
  records: Sequence[Record],
  *,
  references: Sequence[Reference] = (),
) -> tables.Report:
  """Returns the report `results` (.md, .csv, .json) of the best cell; the metric that chose it is first.

  `records` are in the order of the search; a DataError if there is none.
  """
  is_2 = data.version == "2.0"  # the papers' scores are for 2.0
  references = [reference for reference in references if is_2 and "squad_f1" in reference.scores]
  names = squad.METRICS[data.version]
  chosen = summary.choose(records, names[0], protocol.summary)
  rows = []
  for name in names:
    over_seeds = summary.summarise(chosen, name)
    row = {
      "task": "squad",
      "metric": name,
      "is_official": data.is_official,
      "cell": chosen.cell.name,
      "value": summary.score(over_seeds, protocol.summary),
      **over_seeds.values(),
      **reference_rows.scores_beside(references, _PAPERS_COLUMNS.get(name, "")),
    }
    rows.append(row)
  scores = summary.score_columns(protocol.summary, [reference.model for reference in references])
  columns = [tables.Column("metric", _label, "left"), *scores]
  seeds = [tables.Column(chosen.cell.name, _label, "left"), *map(_seed_column, chosen.seeds)]
  star = "" if data.is_official else "*"
  title = f"SQuAD {data.version} dev{star}, {title}, protocol {protocol.name}"
  notes = _notes(protocol, data, rows[0], len(records)) + reference_rows.source_notes(references)
  return tables.Report("results", title, columns, rows, notes, [tables.Table(seeds, rows)])


def _label(row: tables.Row) -> str:
  return LABELS[row["metric"]]


def _seed_column(seed: int) -> tables.Column:
  return tables.Column(f"seed {seed}", lambda row: tables.percent(row["per_seed"][seed]))


def _notes(protocol: Protocol, data: SquadData, judged: tables.Row, num_cells: int) -> list[str]:
  how = protocol.summary
  notes = [
    f"{how.capitalize()} over the seeds of one cell, in percent: the cell with the best {how} of "
    f"{_label(judged)!r} of {num_cells:,}. All metrics of a run are from its best evaluation."
  ]
  if data.version == "2.0":
    notes.append(
      "Best threshold: the threshold of the no-answer score is chosen on the scored questions, as in the "
      f'papers. Threshold 0 is chosen without them. "No answer" to every question scores '
      f"{tables.percent(data.unanswerable)}."
    )
  if not data.is_official:
    notes.append(
      f"* {errors.counted(len(data.dev.file.questions), 'question')} of {data.dev.file.source}, not the "
      "official development set: do not compare these scores with the papers'."
    )
  if len(data.train.file.questions) != (official := squad_answers.OFFICIAL_TRAINING[data.version]):
    notes.append(
      f"Trained on {errors.counted(len(data.train.file.questions), 'question')} of {data.train.file.source}; "
      f"the official training set has {official:,}."
    )
  return notes + summary.skipped_notes({"SQuAD": judged["skipped_updates"]})
