"""The result of an analysis: rows of numbers and plots."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data.page.plot import Curve, Plot
from data.tables import Column, Report


class Needs(Exception):
  """Raised if an analysis lacks data or heads; the message names them."""


class LeftOut(dict[str, str]):
  """{checkpoint: what it lacks for an analysis}; the analysis uses the others."""

  @contextlib.contextmanager
  def where_lacking(self, name: str) -> Iterator[None]:
    """Skips a checkpoint if the block raises Needs."""
    try:
      yield
    except Needs as error:
      self[name] = str(error)

  def sentences(self, rows: Sequence) -> list[str]:
    """Returns a sentence for each skipped checkpoint; raises Needs if no rows are left."""
    if self and not rows:
      raise Needs("; ".join(dict.fromkeys(self.values())))
    return [f"Made without {name}: this needs {what}" for name, what in self.items()]


def stem_of(label: str) -> str:
  """Returns a label as a part of a file's name: 'eval_loss' for 'eval/loss'."""
  return re.sub(r"[^a-z0-9]+", "_", label.lower())


def over_steps(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> list[Curve]:
  """Makes curves over steps from table rows: one for each checkpoint and each key in `labels`.

  The name is the label, with the checkpoint's name if there are several checkpoints or the label is empty.
  """
  curves, names = [], dict.fromkeys(row["checkpoint"] for row in rows)
  for name in names:
    for key, label in labels.items():
      own = [row for row in rows if row["checkpoint"] == name and row.get(key) is not None]
      steps, values = (np.asarray([row[part] for row in own]) for part in ("step", key))
      if own:
        shown = f"{name}, {label}" if label and len(names) > 1 else label or name
        curves.append(Curve(shown, steps, values, has_dots=True))
  return curves


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The result of an analysis: rows, plots and notes."""

  title: str
  rows: Sequence[Mapping[str, Any]]
  plots: Sequence[Plot]
  notes: Sequence[str]
  left_out: Sequence[str] = ()  # of `LeftOut.sentences`

  def report(self, stem: str) -> Report:
    """Returns the rows as a table: numbers with four digits, text left-aligned."""
    names = list(dict.fromkeys(name for row in self.rows for name in row))
    columns = []
    for name in names:
      is_text = any(isinstance(row.get(name), str) for row in self.rows)
      columns.append(
        Column(name, lambda row, name=name: _cell(row.get(name)), "left" if is_text else "right")
      )
    notes = [*self.notes, *(f"{line}." for line in self.left_out)]
    return Report(stem, self.title, columns, self.rows, notes)


def _cell(value: Any) -> str:
  if value is None:
    return "-"
  if isinstance(value, float):
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"
  return f"{value:,}" if isinstance(value, int) else str(value)
