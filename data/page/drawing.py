"""Charts as SVG inside a page: its colours are the page's, so they follow light, dark and paper."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from data.page.markup import Markup, element

WIDTH, HEIGHT = 460, 250  # units of the drawing
LEFT, RIGHT, TOP, BOTTOM = 58, 26, 12, 42  # around the plot
COLOURS = 8  # of the style sheet
_MOST_DOTS = 60  # points of a curve that are marked


class Curve(NamedTuple):
  """A line of a chart."""

  name: str
  run: int  # its place on the page
  steps: np.ndarray  # [points] updates done, or another number along the axis
  values: np.ndarray  # [points] finite
  colour: int  # its number; behind the last the colours come again, with other dashes
  is_held_out: bool  # drawn with dashes and points
  note: str | None = None  # beside its name; None: the last value


class Chart(NamedTuple):
  """Curves over the same axis."""

  title: str
  unit: str
  curves: Sequence[Curve]
  is_whole: bool = False  # drawn up to its highest value, however far above all others that is


class Axis(NamedTuple):
  """The quantity along the horizontal axis of a chart."""

  key: str
  label: str  # with the unit
  place: Sequence[Callable[[np.ndarray], np.ndarray]]  # of each run: steps to places on the axis


def figure(chart: Chart, axes: Sequence[Axis]) -> Markup:
  """A chart with its legend, drawn once over each axis; the page shows one of them."""
  unit = f" ({chart.unit})" if chart.unit and chart.unit != chart.title else ""
  drawings = [element("div", drawing(chart, axis), class_=f"over over-{axis.key}") for axis in axes]
  legend = element("ul", [_entry(curve) for curve in chart.curves], class_="legend")
  caption = element("figcaption", element("b", chart.title), unit)
  return element("figure", caption, drawings, legend)


def _entry(curve: Curve) -> Markup:
  sample = element(
    "svg",
    element("line", x1=1, x2=25, y1=5, y2=5, class_=_class(curve)),
    viewBox="0 0 26 10",
    class_="sample",
    aria_hidden="true",
  )
  note = shown(float(curve.values[-1])) if curve.note is None else curve.note
  return element("li", sample, " ", curve.name or "value", " ", element("span", note, class_="last"))


def _class(curve: Curve) -> str:
  again, colour = divmod(curve.colour, COLOURS)
  return f"line c{colour}" + " again" * bool(again) + " held" * curve.is_held_out


def drawing(chart: Chart, axis: Axis) -> Markup:
  """The plot of a chart over an axis."""
  places = [axis.place[curve.run](curve.steps) for curve in chart.curves]
  left, right = 0.0, max(float(positions[-1]) for positions in places) or 1.0
  everything = np.concatenate([curve.values for curve in chart.curves])
  low, high = _limits(everything, is_whole=chart.is_whole)

  def x(value: np.ndarray | float) -> np.ndarray:
    return LEFT + (np.asarray(value) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

  def y(value: np.ndarray | float) -> np.ndarray:
    inside = np.clip(np.asarray(value), low, high)
    return HEIGHT - BOTTOM - (inside - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

  parts = []
  for tick in ticks(low, high):
    at = round(float(y(tick)), 1)
    parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
    parts.append(element("text", shown(tick), x=LEFT - 6, y=at + 4, text_anchor="end"))
  for tick in ticks(left, right):
    at = round(float(x(tick)), 1)
    parts.append(element("line", x1=at, x2=at, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, class_="axis"))
    parts.append(element("text", shown(tick), x=at, y=HEIGHT - BOTTOM + 17, text_anchor="middle"))
  floor = HEIGHT - BOTTOM
  parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor, class_="axis"))
  middle = (LEFT + WIDTH - RIGHT) / 2
  parts.append(element("text", axis.label, x=middle, y=HEIGHT - 6, text_anchor="middle", class_="name"))
  for curve, positions in zip(chart.curves, places):
    parts.append(_path(curve, x(positions), y(curve.values)))
  label = f"{chart.title} over {axis.label}: " + "; ".join(
    f"{curve.name or 'value'} from {shown(float(curve.values[0]))} to {shown(float(curve.values[-1]))}"
    for curve in chart.curves
  )
  return element("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def _path(curve: Curve, x: np.ndarray, y: np.ndarray) -> Markup:
  """The line of a curve; its points too where it has few, each with its numbers for a pointer."""
  points = " ".join(f"{px:.1f},{py:.1f}" for px, py in zip(x.tolist(), y.tolist()))
  line = element("polyline", points=points, class_=_class(curve))
  has_dots = len(x) <= _MOST_DOTS and (curve.is_held_out or len(x) == 1)
  dots = [
    element(
      "circle",
      element("title", f"{curve.name} step {step:,}: {shown(value)}".strip()),
      cx=round(px, 1),
      cy=round(py, 1),
      r=2.5,
      class_=f"dot c{curve.colour % COLOURS}",
    )
    for px, py, step, value in zip(x.tolist(), y.tolist(), curve.steps.tolist(), curve.values.tolist())
    if has_dots
  ]
  return element("g", line, dots)


def _limits(values: np.ndarray, *, is_whole: bool) -> tuple[float, float]:
  """The range of an axis: of the values, unless `is_whole` without a few far above or below all others."""
  low, high = float(values.min()), float(values.max())
  if len(values) >= 20 and not is_whole:
    near, far = np.quantile(values, [0.02, 0.98])
    margin = 1.5 * (far - near)
    if margin > 0:
      low, high = max(low, float(near - margin)), min(high, float(far + margin))
  if high - low < 1e-12 * max(abs(low), abs(high), 1e-300):
    low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
  return low, high


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
  """Round numbers within [low, high], a step of 1, 2 or 5 times a power of ten apart; at most `most`."""
  rough = (high - low) / most
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
  first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
  return [number * step for number in range(first, last + 1)]


def shown(value: float) -> str:
  """A number in at most four digits: '12,300', '4.413', '1.1e-06'."""
  if value == 0:
    return "0"
  size = abs(value)
  if size >= 1000:
    return f"{float(f'{value:.4g}'):,.0f}"
  return f"{value:.4g}" if size >= 1e-3 else f"{value:.2g}"
