"""Right answers of encoders about tokens that several generators replaced."""

import types

import numpy as np
import pytest

from lab.analysis import curricula, detection
from lab.analysis.outcome import Needs

IDS = np.asarray([[1, 5, 6, 7, 8, 0]])


def test_shares_of_planted_answers():
  truth, probability = np.asarray([1, 1, 0, 0, 0], bool), np.asarray([0.9, 0.2, 0.1, 0.5, 0.8])
  expected = {"rate": pytest.approx(0.4), "replaced": 0.5, "original": pytest.approx(2 / 3)}
  expected["area"] = pytest.approx(4 / 6)  # of the pairs of a replaced and an original token
  assert curricula.shares(truth, probability) == expected
  nothing = curricula.shares(np.zeros(3, bool), np.zeros(3))
  assert nothing["replaced"] is None and nothing["area"] is None and nothing["original"] == 1


@pytest.mark.parametrize("masked", [1, 2])
def test_runs_are_asked_about_the_same_text_and_a_note_says_whether_with_the_same_masks(monkeypatch, masked):
  """'sure' finds the one replaced token at both steps, 'blind' never does; padding is not asked about."""
  recipe = types.SimpleNamespace(tokens=types.SimpleNamespace(pad=0))

  def opened(name: str):
    params = {"heads": {"rtd": name} if name != "masked" else {}}
    return types.SimpleNamespace(run=types.SimpleNamespace(recipe=recipe), params=params, heldout=IDS)

  def collect(run, params, heldout, describe, *, rows):
    at = masked if params["heads"]["rtd"] == "blind" else 1
    inputs = np.where(np.arange(6) == at, 9, heldout)
    belief = np.where(inputs != heldout, params["heads"]["rtd"] == "sure", 0.0)
    return {"ids": heldout, "input_ids": inputs, "selected": inputs == 9, "probability_replaced": belief}

  def request(*names: str):
    steps = [(name, step, opened(name)) for name in names for step in (10, 20)]
    return types.SimpleNamespace(rows=1, every_step=lambda left_out: steps)

  monkeypatch.setattr(detection, "collect", collect)
  outcome = curricula.measure(request("sure", "blind"))
  found = [(row["checkpoint"], row["step"], row["rate"], row["replaced"]) for row in outcome.rows]
  assert found == [("sure", 10, 0.2, 1), ("sure", 20, 0.2, 1), ("blind", 10, 0.2, 0), ("blind", 20, 0.2, 0)]
  (replaced, original) = outcome.plots
  assert [curve.y.tolist() for curve in replaced.curves] == [[1, 1], [0, 0]]
  assert [curve.x.tolist() for curve in original.curves] == [[10, 20]] * 2
  assert ("with the same masks" in outcome.notes[0]) == (masked == 1)
  assert not outcome.left_out
  fewer = curricula.measure(request("sure", "masked"))
  assert [row["checkpoint"] for row in fewer.rows] == ["sure", "sure"] and "same masks" in fewer.notes[0]
  (line,) = fewer.left_out
  assert line.startswith("Made without masked: this needs a head that tells") and "which masked lacks" in line
  with pytest.raises(Needs, match="which masked lacks"):  # alone: nothing is left
    curricula.measure(request("masked"))
