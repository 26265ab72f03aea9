"""Charts: the same bytes every time, whatever their names are."""

from xml.etree import ElementTree

import numpy as np

from data.page import Curve, Plot


def test_a_plot_has_its_points_beside_it_and_is_the_same_every_time(tmp_path):
  curve = Curve('a "name" & <more>', np.arange(3.0), np.asarray([1.0, 2.0, 1.5]))
  made = Plot("p", "Title", "step", "nats", [curve])
  for place in ("one", "two"):
    assert [path.name for path in made.write(tmp_path / place)] == ["p.svg", "p.png"]
  for name in ("p.svg", "p.png", "p_points.csv"):
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
  root = ElementTree.parse(tmp_path / "one" / "p.svg").getroot()
  assert root.findtext("{http://www.w3.org/2000/svg}title") == made.summary
  assert (tmp_path / "one" / "p_points.csv").read_text().splitlines()[1] == '"a ""name"" & <more>",0.0,1.0'
