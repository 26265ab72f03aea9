"""Figures of replaced token detection on answers that were planted."""

import math

import numpy as np
import pytest

from lab.analysis import detection

RNG = np.random.default_rng(0)


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
