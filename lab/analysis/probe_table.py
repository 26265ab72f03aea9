"""The table of all probes: a row for each probe and reading, columns for the baseline and each model."""

from collections.abc import Mapping, Sequence

from data.tables import Column, Report, Row, percent, text_column
from lab.analysis.probes import WITHOUT, Figure, Probe

CLEAR = 2.0  # a difference of more standard errors is counted as significant


def report(
  probes: Sequence[Probe],
  figures: Mapping[str, Sequence[Figure]],
  untrained: Mapping[str, str],
  skipped: Sequence[str],
) -> Report:
  """Makes the table of all scores: a row for each probe, a column for each model and the baseline.

  Args:
    figures: {name of a model: its scores}; the baseline's scores have the name `WITHOUT`.
    untrained: {name of a model: name of its encoder before pretraining}.
    skipped: a sentence for each skipped probe.
  """
  models = [name for name in figures if name != WITHOUT]
  without = {(figure.probe, figure.cases): figure for figure in figures[WITHOUT]}
  by_model = {name: {(f.probe, f.cases, f.read): f for f in figures[name]} for name in models}
  keys = list(dict.fromkeys(key for by_key in by_model.values() for key in by_key))
  rows = []
  for key in keys:
    trivial = without[key[:2]]
    row: dict = {"probe": key[0], "cases": key[1], "read": key[2], "measure": trivial.measure}
    row |= {"count": trivial.count, WITHOUT: trivial.value}
    for name, by_key in by_model.items():
      if key in by_key:
        row |= {name: by_key[key].value, f"{name}: standard error": by_key[key].standard_error}
    rows.append(row)
  columns = [text_column(name, name) for name in ("probe", "cases", "read", "measure")]
  columns += [Column("count", lambda row: f"{row['count']:,}"), *map(_figure_column, [WITHOUT, *models])]
  notes = list(dict.fromkeys(probe.about[0].upper() + probe.about[1:] + "." for probe in probes))
  notes.append(
    "Only the linear classifier of a probe is trained. read: rows of the token table alone, states after "
    "half of the layers or after all; [CLS] or the mean over tokens; or the head. Figures are percent; "
    "standard errors are over the cases, not over pretraining with other seeds. The untrained encoder's "
    "'tokens' are random values, one vector for each piece."
  )
  notes += [_gain(name, by_model[name], before, by_model[before]) for name, before in untrained.items()]
  return Report("probe", "Probes of frozen encoders", columns, rows, [*notes, *skipped])


def _figure_column(name: str) -> Column:
  def show(row: Row) -> str:
    error = row.get(f"{name}: standard error")
    if name not in row:
      return "-"
    return percent(row[name]) + ("" if error is None else f" ±{percent(error)}")

  return Column(name, show)


def _gain(name: str, found: Mapping[tuple, Figure], before: str, then: Mapping[tuple, Figure]) -> str:
  both = [key for key in found if key in then]
  clear = [_difference(found[key], then[key]) for key in both]
  better, worse = sum(z > CLEAR for z in clear), sum(z < -CLEAR for z in clear)
  return (
    f"{name}: figures above those of {before} by more than two standard errors: {better} of {len(both)}; "
    f"below: {worse}."
  )


def _difference(now: Figure, then: Figure) -> float:
  """Returns (now - then) / its standard error; conservative, because both scores use the same cases."""
  error = (now.standard_error**2 + then.standard_error**2) ** 0.5
  return (now.value - then.value) / error if error else 0.0
