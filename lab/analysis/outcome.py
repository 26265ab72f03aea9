"""What an analysis gives: rows of numbers, and plots of which the points are kept beside the picture."""

import contextlib
import dataclasses
import io
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data import errors, files
from data.tables import Column, Report

# Okabe and Ito's colours, which people who see few colours can tell apart; lines differ in dashes too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MOST_INSIDE = 3  # names of curves in a legend between the axes
_DASHES = ("-", "--", "-.", ":")


class Needs(Exception):
  """An analysis cannot be made of what there is; the message says what it needs."""


class LeftOut(dict[str, str]):
  """{checkpoint: what an analysis needs and it lacks}; the analysis is made of the others."""

  @contextlib.contextmanager
  def where_lacking(self, name: str) -> Iterator[None]:
    """Leaves a checkpoint out where the block raises Needs."""
    try:
      yield
    except Needs as error:
      self[name] = str(error)

  def sentences(self, rows: Sequence) -> list[str]:
    """One for each, for a report of these rows; Needs where they leave none."""
    if self and not rows:
      raise Needs("; ".join(dict.fromkeys(self.values())))
    return [f"Made without {name}: this needs {what}" for name, what in self.items()]


class Curve(NamedTuple):
  """A line of a plot; curves of one name have one colour."""

  name: str
  x: np.ndarray  # [points]
  y: np.ndarray  # [points]
  is_step: bool = False  # a histogram: each value holds up to the next point; drawn as an area
  has_dots: bool = False
  is_cloud: bool = False  # dots without a line between them
  low: np.ndarray | None = None  # [points] ends of an interval around each, nan where there is none
  high: np.ndarray | None = None


def stem_of(label: str) -> str:
  """A label as a part of a file's name: 'eval_loss' of 'eval/loss'."""
  return re.sub(r"[^a-z0-9]+", "_", label.lower())


@dataclasses.dataclass(frozen=True)
class Plot:
  """Curves over an axis, with units in the labels."""

  stem: str  # name of its files without endings
  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  has_diagonal: bool = False  # where both axes are the same quantity

  def write(self, directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes `<stem>.svg`, `.png` and the points as `_points.csv`; StorageError where they cannot be."""
    import matplotlib  # here: a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    axis = FigureCanvasAgg(figure).figure.subplots()
    names = list(dict.fromkeys(curve.name for curve in self.curves))
    has_lines = any(not curve.is_step for curve in self.curves)
    unnamed = set(names)  # so far: a name has one line in the legend
    for curve in self.curves:
      number = names.index(curve.name)
      colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
      if curve.is_step:
        axis.fill_between(curve.x, curve.y, step="post", color=colour, alpha=0.25, linewidth=0)
      if curve.is_step and has_lines:
        continue
      axis.plot(
        curve.x,
        curve.y,
        label=curve.name if curve.name in unnamed else "_nolegend_",
        color=colour,
        linestyle="none" if curve.is_cloud else dashes,
        marker="." if curve.is_cloud else "o" if curve.has_dots else None,
        markersize=4,
        drawstyle="steps-post" if curve.is_step else "default",
      )
      unnamed.discard(curve.name)
      if curve.low is not None and curve.high is not None:
        axis.vlines(curve.x, curve.low, curve.high, color=colour, linewidth=1)
    if all((curve.x == np.round(curve.x)).all() for curve in self.curves):
      axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if self.has_diagonal:
      axis.plot([0, 1], [0, 1], color="#999999", linewidth=1, zorder=0)
    axis.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    if len(names) > _MOST_INSIDE:  # it would lie over the lines
      figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    elif names != [""]:
      axis.legend(fontsize=8, frameon=False)
    written = []
    with errors.writing(directory), matplotlib.rc_context({"svg.hashsalt": self.stem}):
      for ending, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        content = io.BytesIO()
        figure.savefig(content, format=ending, metadata=metadata)
        written.append(directory / f"{self.stem}.{ending}")
        files.write_atomically(written[-1], content.getvalue())
      lines = ["curve,x,y"]
      for curve in self.curves:
        name = '"' + curve.name.replace('"', "'") + '"'
        lines += [f"{name},{x!r},{y!r}" for x, y in zip(curve.x.tolist(), curve.y.tolist())]
      files.write_atomically(directory / f"{self.stem}_points.csv", "\n".join(lines) + "\n")
    return written


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What an analysis found."""

  title: str
  rows: Sequence[Mapping[str, Any]]
  plots: Sequence[Plot]
  notes: Sequence[str]
  left_out: Sequence[str] = ()  # of `LeftOut.sentences`

  def report(self, stem: str) -> Report:
    """The rows as a table: numbers in four digits, names at the left."""
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
