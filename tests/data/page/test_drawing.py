"""Charts of pages: axes of round numbers, legends."""

import numpy as np

from data.page import drawing


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
