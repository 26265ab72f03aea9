"""The tables as one HTML page, with charts of what is a distribution."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from data.inspect import fertility
from data.inspect.beside import label
from data.inspect.look import Look
from data.page import drawing, markup
from data.page.drawing import Axis, Chart, Curve
from data.page.markup import Markup, element
from data.tables import Column, Report, Row

_MOST_BARS = 64
_MOST_POINTS = 200  # of a curve


def make(looks: Sequence[Look], made: Sequence[Report]) -> str:
  """Returns the whole page with the tables of `reports.make`, the charts behind the first of them."""
  names = " and ".join(label(look, looks) for look in looks)
  links = [element("li", element("a", report.title, href=f"#part-{at}")) for at, report in enumerate(made)]
  header = element(
    "header",
    element("h1", names),
    element("p", _lead(looks), class_="lead"),
    element("nav", element("ul", links), aria_label="sections"),
  )
  parts = [
    element(
      "section",
      element("h2", report.title, id=f"part-{at}"),
      _charts(looks) if at == 0 else None,
      _tables(report),
      aria_labelledby=f"part-{at}",
    )
    for at, report in enumerate(made)
  ]
  return markup.document(names, header, element("main", parts))


def _lead(looks: Sequence[Look]) -> str:
  kind = "Prepared records" if looks[0].records else "A vocabulary"
  if len(looks) > 1:
    kind = "Two directories of prepared records" if looks[0].records else "Two vocabularies"
  return f"{kind}: {' and '.join(look.name for look in looks)}."


def _tables(report: Report) -> list[Any]:
  parts: list[Any] = []
  for columns, rows in report.tables:
    numbers = [at for at, column in enumerate(columns) if column.side == "right"]
    cells = [[_cell(column, row) for column in columns] for row in rows]
    if columns:
      parts.append(markup.table([column.header for column in columns], cells, numbers=numbers))
  return [*parts, *(element("p", note, class_="note") for note in report.notes)]


def _cell(column: Column, row: Row) -> str:
  text = column.show(row)
  # No line ends behind the hyphen with which a piece begins.
  return re.sub(r"(?<!\S)-", "\u2011", text) if column.header == fertility.CUT_INTO else text


def _charts(looks: Sequence[Look]) -> Markup:
  if looks[0].records:
    figures = [
      _figure("tokens in a training record", "share of records", "tokens", looks, _lengths),
      _figure("tokens made up by the commonest pieces", "share of tokens", "pieces", looks, _coverage),
    ]
  else:
    figures = [_figure("characters in a piece", "share of pieces", "characters", looks, _sizes)]
  return element("div", figures, class_="charts")


def _figure(title: str, unit: str, axis: str, looks: Sequence[Look], values: Any) -> Markup:
  curves = []
  for at, look in enumerate(looks):
    x, y, note = values(look)
    curves.append(Curve(label(look, looks), at, x, y, at, False, note))
  places = [lambda x: x.astype(float)] * len(looks)
  return drawing.figure(Chart(title, unit, curves, is_whole=True), [Axis("step", axis, places)])


def _lengths(look: Look) -> tuple[np.ndarray, np.ndarray, str]:
  assert look.records
  lengths = look.records.lengths
  return *_bars(lengths, look.records.made.length), f"mean {lengths.mean():,.1f}"


def _sizes(look: Look) -> tuple[np.ndarray, np.ndarray, str]:
  sizes = look.pieces.sizes[look.pieces.sizes > 0]
  return *_bars(sizes, int(sizes.max())), f"mean {sizes.mean():.2f}"


def _bars(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the outline, x and y, of a histogram of whole numbers from 1 to `most`: shares of all of them."""
  edges = np.unique(np.linspace(0, most, min(most, _MOST_BARS) + 1).round().astype(np.int64))
  shares = np.histogram(values, edges + 0.5)[0] / values.size
  return np.repeat(edges, 2), np.concatenate([[0.0], np.repeat(shares, 2), [0.0]])


def _coverage(look: Look) -> tuple[np.ndarray, np.ndarray, str]:
  """Returns numbers of pieces, the share of tokens that as many of the commonest make up, and half of all."""
  assert look.records
  sums = np.cumsum(np.sort(look.records.unigram)[::-1])
  shares = sums / sums[-1]
  numbers = np.unique(np.geomspace(1, shares.size, _MOST_POINTS).round().astype(np.int64))
  return numbers, shares[numbers - 1], f"half by {int(np.searchsorted(shares, 0.5)) + 1:,} pieces"
