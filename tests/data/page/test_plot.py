"""Charts: the same bytes every time, curves that differ, whatever their names are."""

from xml.etree import ElementTree

import numpy as np

from data.page import plot
from data.page.plot import Curve, Plot

SVG = "{http://www.w3.org/2000/svg}"


def lines(curves: list[Curve]) -> set[tuple[str, ...]]:
  """The looks of the lines in a chart's legend."""
  root = ElementTree.fromstring(Plot("p", "Title", "step", "nats", curves).picture("svg"))
  (legend,) = (group for group in root.iter(f"{SVG}g") if group.get("id") == "legend_1")
  styles = (path.get("style", "") for path in legend.iter(f"{SVG}path"))
  return {style for style in styles if "stroke:" in style}


def test_a_plot_has_its_points_beside_it_and_is_the_same_every_time(tmp_path):
  curve = Curve('a "name" & <more>', np.arange(3.0), np.asarray([1.0, 2.0, 1.5]))
  made = Plot("p", "Title", "step", "nats", [curve])
  for place in ("one", "two"):
    assert [path.name for path in made.write(tmp_path / place)] == ["p.svg", "p.png"]
  for name in ("p.svg", "p.png", "p_points.csv"):
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
  root = ElementTree.parse(tmp_path / "one" / "p.svg").getroot()
  assert root.findtext(f"{SVG}title") == made.summary == 'Title over step: a "name" & <more> from 1 to 1.5'
  assert (tmp_path / "one" / "p_points.csv").read_text().splitlines()[1] == '"a ""name"" & <more>",0.0,1.0'


def test_no_two_curves_look_alike():
  points = np.arange(3.0)
  curves = [
    Curve(f"{number} {is_dashed}", points, points, number, is_dashed=is_dashed)
    for number in range(10)
    for is_dashed in (False, True)
  ]
  assert len(lines(curves)) == 20


def test_names_are_text_and_one_point_or_equal_values_are_drawn():
  for name in ("$a$", "_a", "\x00\ud800", ""):
    for x in ([0.0], [0.0, 1.0]):
      curve = Curve(name, np.asarray(x), np.ones(len(x)))
      root = ElementTree.fromstring(Plot("p", name, name, name, [curve]).picture("svg"))
      texts = [node.text for node in root.iter(f"{SVG}text")]
      assert texts.count(plot.printable(name)) == (4 if name else 0)
      assert not {"nan", "inf"} & set(texts)


def test_numbers_have_at_most_four_digits():
  values = (0, 12_345.6, 4.41312, 1.1e-6)
  assert [plot.shown(value) for value in values] == ["0", "12,350", "4.413", "1.1e-06"]
