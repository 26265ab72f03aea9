"""Figures of replaced token detection on answers that were planted."""

import math
import types

import numpy as np
import pytest

from lab.analysis import detection
from lab.analysis.outcome import Needs

RNG = np.random.default_rng(0)
IDS = np.asarray([[1, 5, 6, 7, 8, 0]])


def test_calibration_of_the_true_rates_is_near_zero_and_of_a_wrong_constant_the_distance():
  probability = RNG.uniform(0, 1, 200_000)
  found = detection.figures(RNG.uniform(0, 1, 200_000) < probability, probability)
  assert found["calibration"] is not None and found["calibration"] < 0.005
  truth = np.arange(1_000) < 100
  wrong = detection.figures(truth, np.full(1_000, 0.9))
  assert wrong["calibration"] == pytest.approx(0.8) and wrong["area"] == 0.5
  assert wrong["loss at replaced"] == pytest.approx(-math.log(0.9))
  shuffled = detection.figures(RNG.permutation(np.arange(100_000) % 7 == 0), RNG.uniform(0, 1, 100_000))
  assert shuffled["area"] == pytest.approx(0.5, abs=0.01)
  assert detection.figures(np.zeros(4, bool), np.full(4, 0.2))["area"] is None


def test_the_token_that_is_never_suspected_fools_the_encoder_most():
  ids = np.zeros((2, 20), np.int32)
  inputs = np.repeat([[7, 8], [0, 8]], 10, axis=1).astype(np.int32)
  belief = np.where(inputs == 7, 0.1, 0.9)
  found = detection.fooling({"ids": ids, "input_ids": inputs, "probability_replaced": belief})
  assert [(token, count) for token, count, _ in found] == [(7, 10), (8, 20)]
  assert [mean for _, _, mean in found] == pytest.approx([0.1, 0.9])


def test_precision_is_the_share_of_what_is_called_replaced_that_is():
  # Called replaced are the 1st, 2nd and 4th; the 1st and 4th are. 0.5 is not called so.
  truth = np.asarray([1, 0, 0, 1, 1, 1], bool)
  probability = np.asarray([0.9, 0.8, 0.5, 0.6, 0.1, 0.2])
  found = detection.figures(truth, probability)
  assert found["precision"] == pytest.approx(2 / 3) and found["right"] == pytest.approx(3 / 6)
  assert detection.figures(truth, np.full(6, 0.5))["precision"] is None


def test_shares_of_planted_answers():
  truth, probability = np.asarray([1, 1, 0, 0, 0], bool), np.asarray([0.9, 0.2, 0.1, 0.5, 0.8])
  expected = {"rate": pytest.approx(0.4), "replaced": 0.5, "original": pytest.approx(2 / 3)}
  expected["area"] = pytest.approx(4 / 6)  # of the pairs of a replaced and an original token
  assert detection.shares(truth, probability) == expected
  nothing = detection.shares(np.zeros(3, bool), np.zeros(3))
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
  outcome = detection.curricula(request("sure", "blind"))
  found = [(row["checkpoint"], row["step"], row["rate"], row["replaced"]) for row in outcome.rows]
  assert found == [("sure", 10, 0.2, 1), ("sure", 20, 0.2, 1), ("blind", 10, 0.2, 0), ("blind", 20, 0.2, 0)]
  (replaced, original) = outcome.plots
  assert [curve.y.tolist() for curve in replaced.curves] == [[1, 1], [0, 0]]
  assert [curve.x.tolist() for curve in original.curves] == [[10, 20]] * 2
  assert ("with the same masks" in outcome.notes[0]) == (masked == 1)
  assert not outcome.left_out
  fewer = detection.curricula(request("sure", "masked"))
  assert [row["checkpoint"] for row in fewer.rows] == ["sure", "sure"] and "same masks" in fewer.notes[0]
  (line,) = fewer.left_out
  assert line.startswith("Made without masked: this needs a head that tells") and "which masked lacks" in line
  with pytest.raises(Needs, match="which masked lacks"):  # alone: nothing is left
    detection.curricula(request("masked"))
