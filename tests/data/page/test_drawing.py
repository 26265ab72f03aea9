"""Charts of pages: axes of round numbers, legends."""

import numpy as np

from data.page import drawing


def test_no_two_curves_look_alike():
  points = np.arange(3.0)
  curves = [
    drawing.Curve(f"{number}", 0, points, points, number, is_held_out)
    for number in range(10)
    for is_held_out in (False, True)
  ]
  looks = [drawing._class(curve) for curve in curves]
  assert len(set(looks)) == 20
  assert looks[:2] == ["line c0", "line c0 held"] and looks[16:18] == ["line c0 again", "line c0 again held"]


def test_ticks_are_round_and_inside():
  assert drawing.ticks(0, 1000) == [0, 200, 400, 600, 800, 1000]
  np.testing.assert_allclose(drawing.ticks(4.4, 8.5), [5, 6, 7, 8])
  np.testing.assert_allclose(drawing.ticks(0, 0.002), [0, 0.0005, 0.001, 0.0015, 0.002])
  assert [drawing.shown(value) for value in (0, 12_345.6, 4.41312, 1.1e-6)] == [
    "0",
    "12,350",
    "4.413",
    "1.1e-06",
  ]
