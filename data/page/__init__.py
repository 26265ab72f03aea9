"""HTML pages in one style, and charts.

`render` fills templates that extend `page.html`. `Plot` draws charts for pages, analyses and searches with
matplotlib; the same data give the same bytes.
"""

import base64
import dataclasses
import io
import pathlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from data import errors, files, tabular

# Characters that would damage a page or picture: controls, lone surrogates, noncharacters, and marks that
# change the direction of the surrounding text.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
  """Replaces each character that cannot be shown with U+FFFD."""
  return _UNPRINTABLE.sub("\ufffd", text)


def render(path: pathlib.Path, **values: Any) -> str:
  """Returns the page of a Jinja2 template, which may extend `page.html` or import `parts.html`.

  Every value is escaped.
  """
  import jinja2  # imported here, because charts do not need it

  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([path.parent, pathlib.Path(__file__).parent]),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
  return printable(environment.get_template(path.name).render(values))


# Distinguishable for colour-blind readers, with a contrast of at least 3 to 1 on white. The ninth curve has
# the first colour again, dotted.
COLOURS = ("#0072b2", "#c2500a", "#00805c", "#a3467b", "#8a6500", "#3b8fc4", "#6b4fbb", "#4d4d4d")
_STYLES = ("-", "--", ":", "-.")
_WIDTH, _HEIGHT, _LINE = 5.0, 3.0, 0.19  # inches: chart, and one line of its legend
_COLUMN = 26  # longest name in a legend of two columns, in letters
_MOST_NAMED = 40  # curves in a legend, two for each run of a page


class Curve(NamedTuple):
  """A curve of a plot, with its style."""

  name: str
  x: np.ndarray  # [points]
  y: np.ndarray  # [points]
  colour: int | None = None  # index of the colour; None: the next one, shared by curves of one name
  note: str = ""  # after its name in the legend
  is_dashed: bool = False
  is_step: bool = False  # a histogram: each value holds up to the next point; drawn as an area
  has_dots: bool = False


@dataclasses.dataclass(frozen=True)
class Plot:
  """A chart of curves; labels of axes include units."""

  stem: str  # name of its files without endings
  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  has_diagonal: bool = False  # for charts whose axes have the same quantity
  y_limits: tuple[float, float] | None = None  # None: all values

  @property
  def summary(self) -> str:
    """The alternative text of the picture: first and last value of each curve."""
    ends = (
      f"{curve.name or 'value'} from {shown(float(curve.y[0]))} to {shown(float(curve.y[-1]))}"
      for curve in self.curves
    )
    return printable(f"{self.title} over {self.x_label}: {'; '.join(ends)}")

  def picture(self, ending: Literal["svg", "png"]) -> bytes:
    """Draws the plot; returns the bytes of the picture."""
    # Imported here because it takes a second; not pyplot, which keeps every figure in memory.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with matplotlib.rc_context(
      {
        "font.size": 10,
        "svg.fonttype": "none",  # searchable text, a tenth of the size of outlines
        "svg.hashsalt": "plot",
        "text.parse_math": False,  # a run may have the name `$a$`
      }
    ):
      figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=160, layout="constrained")
      axis = FigureCanvasAgg(figure).figure.subplots()
      names = list(dict.fromkeys(curve.name for curve in self.curves))
      legend: dict[str, Any] = {}
      for curve in self.curves:
        number = names.index(curve.name) if curve.colour is None else curve.colour
        again, colour = number // len(COLOURS) % 2, COLOURS[number % len(COLOURS)]
        label = textwrap.fill(printable(f"{curve.name}  {curve.note}".strip()), 60)
        if curve.is_step:
          axis.fill_between(curve.x, curve.y, step="post", color=colour, alpha=0.25, linewidth=0)
        (line,) = axis.plot(
          curve.x,
          curve.y,
          color=colour,
          linestyle=_STYLES[2 * again + curve.is_dashed],
          marker="o" if curve.has_dots or len(curve.x) == 1 else None,
          markersize=3.5,
          linewidth=1.6,
          drawstyle="steps-post" if curve.is_step else "default",
        )
        legend[label] = line
      if all((curve.x == np.round(curve.x)).all() for curve in self.curves):
        axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
      for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
      if self.has_diagonal:
        axis.plot([0, 1], [0, 1], color="#999999", linewidth=1, zorder=0)
      axis.set(xlabel=printable(self.x_label), ylabel=printable(self.y_label), ylim=self.y_limits)
      axis.set_title(textwrap.fill(printable(self.title), 48), loc="left", fontsize=10.5, fontweight="bold")
      axis.spines[["top", "right"]].set_visible(False)
      axis.grid(alpha=0.25)
      if set(legend) != {""}:
        _name_curves(figure, legend)
      metadata = {"Title": self.summary, "Date": None} if ending == "svg" else {"Software": None}
      content = io.BytesIO()
      figure.savefig(content, format=ending, metadata=metadata)
    return content.getvalue()

  def write(self, directory: pathlib.Path) -> list[pathlib.Path]:
    """Writes `<stem>.svg`, `<stem>.png` and `<stem>_points.csv`; StorageError if that fails."""
    paths = [directory / f"{self.stem}.svg", directory / f"{self.stem}.png"]
    rows: list[tuple] = [("curve", "x", "y")]
    for curve in self.curves:
      rows += [(curve.name, x, y) for x, y in zip(curve.x.tolist(), curve.y.tolist())]
    with errors.writing(directory):
      directory.mkdir(parents=True, exist_ok=True)
      files.write_atomically(paths[0], self.picture("svg"))
      files.write_atomically(paths[1], self.picture("png"))
      files.write_atomically(directory / f"{self.stem}_points.csv", tabular.csv_text(rows))
    return paths


def _name_curves(figure: Any, legend: Mapping[str, Any]) -> None:
  labels = list(legend)[:_MOST_NAMED]
  handles = [legend[label] for label in labels]
  if more := len(legend) - len(labels):
    labels[-1] = f"and {more + 1} more"
  columns = 2 if len(labels) > 1 and max(map(len, labels)) <= _COLUMN else 1
  lines = -(-sum(label.count("\n") + 1 for label in labels) // columns)
  figure.set_figheight(_HEIGHT + _LINE * lines)
  figure.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=9, frameon=False)


def shown(value: float) -> str:
  """Returns a number with at most four significant digits: '12,350', '4.413', '1.1e-06'."""
  if abs(value) >= 1000:
    return f"{float(f'{value:.4g}'):,.0f}"
  return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"
