"""Figures on held-out blocks, of detection and of spaces of vectors: cases whose value is known."""

import math
import types

import jax.numpy as jnp
import numpy as np
import pytest

from lab.analysis import detection, space
from lab.analysis.request import Needs
from pretrain import evaluate
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests.pretrain import small_run

RNG = np.random.default_rng(0)


def test_calibration_of_the_true_rates_is_near_zero_and_of_a_wrong_constant_the_distance():
  probability = RNG.uniform(0, 1, 200_000)
  found = detection.figures(RNG.uniform(0, 1, 200_000) < probability, probability)
  assert found["calibration"] is not None and found["calibration"] < 0.005
  wrong = detection.figures(np.arange(1_000) < 100, np.full(1_000, 0.9))
  assert wrong["calibration"] == pytest.approx(0.8) and wrong["area"] == 0.5
  assert wrong["loss at replaced"] == pytest.approx(-math.log(0.9))
  assert wrong["loss"] == pytest.approx(-0.1 * math.log(0.9) - 0.9 * math.log(0.1))
  assert detection.figures(np.zeros(4, bool), np.full(4, 0.2))["area"] is None
  bins = detection.figures(np.asarray([True, False]), np.asarray([0.05, 0.25]))  # two of ten
  assert bins["calibration"] == pytest.approx((0.95 + 0.25) / 2)
  # Called replaced are the 1st, 2nd and 4th; the 1st and 4th are. 0.5 is not called so.
  truth = np.asarray([1, 0, 0, 1, 1, 1], bool)
  found = detection.figures(truth, np.asarray([0.9, 0.8, 0.5, 0.6, 0.1, 0.2]))
  assert found["precision"] == pytest.approx(2 / 3) and found["right"] == pytest.approx(3 / 6)
  assert detection.figures(truth, np.full(6, 0.5))["precision"] is None


def test_the_token_that_is_never_suspected_fools_the_encoder_most():
  ids = np.zeros((2, 20), np.int32)
  inputs = np.repeat([[7, 8], [0, 8]], 10, axis=1).astype(np.int32)
  inputs[1, :4] = 9  # put in too seldom to be listed
  belief = np.where(inputs == 7, 0.1, 0.9)
  found = detection.fooling({"ids": ids, "input_ids": inputs, "probability_replaced": belief})
  assert [(token, count) for token, count, _ in found] == [(7, 10), (8, 20)]
  assert [mean for _, _, mean in found] == pytest.approx([0.1, 0.9])
  inputs[1, 4] = 9
  assert len(detection.fooling({"ids": ids, "input_ids": inputs, "probability_replaced": belief})) == 3


def test_uniform_vectors_have_the_analytic_uniformity_and_equal_ones_none():
  points = RNG.standard_normal((4_000, 3))
  points /= np.linalg.norm(points, axis=-1, keepdims=True)
  first, second = space.random_pairs(len(points), 100_000)
  assert (first != second).all()
  # On a sphere in three dimensions a cosine c is uniform: E exp(-2 (2 - 2 c)) = exp(-4) sinh(4) / 4.
  expected = math.log(math.sinh(4) / 4) - 4
  assert space.uniformity(points[first], points[second]) == pytest.approx(expected, abs=0.02)
  assert space.alignment(points, points) == 0 and space.uniformity(points, points) == 0
  assert space.alignment(points, -points) == pytest.approx(4)
  assert space.area_between(np.ones(3), np.zeros(4)) == 1
  assert space.area_between(np.zeros(5), np.zeros(4)) == 0.5


def test_random_pairs_are_of_blocks_and_of_an_import_of_sentences():
  class Words:  # a direction for each text, however it is given
    vocabulary, max_length = types.SimpleNamespace(special_ids=types.SimpleNamespace(pad=0)), 3

    def inputs(self, texts):
      return [{"ids": np.full(2, int(text))} for text in texts]

    def vectors(self, inputs):
      return 2 * np.eye(9)[[row["ids"][0] for row in inputs]]

  similar = (["1", "2", "3"], ["1", "2", "4"])
  blocks = np.asarray([[5, 0, 0, 0], [6, 1, 2, 3]])
  for given, places in ((blocks, [5, 6]), (None, [1, 2, 3])):
    sides = space.pairs_of(Words(), given, similar)
    first, second = sides["random"]
    assert np.unique(first.argmax(-1)).tolist() == places and not np.einsum("nw,nw->n", first, second).any()
    np.testing.assert_array_equal(np.einsum("nw,nw->n", *sides["similar"]), [1, 1, 0])
  with pytest.raises(Needs, match="two pairs"):
    space.pairs_of(Words(), None, None)


def test_densities_have_an_area_of_one_and_a_collapsed_space_hides_no_other():
  histogram, density = space.densities("x", np.clip(RNG.normal(0.2, 0.1, 5_000), -1, 1))
  assert np.sum(histogram.y[:-1] * np.diff(histogram.x)) == pytest.approx(1)
  assert np.trapezoid(density.y, density.x) == pytest.approx(1, abs=1e-3)
  assert density.x[density.y.argmax()] == pytest.approx(0.2, abs=0.03)
  histogram, density = space.densities("x", RNG.normal(0.9, 1e-3, 1_000))
  # One bin has them all; the estimate is the Gaussian whose deviation is half of the bin's width.
  bin_width = histogram.x[1] - histogram.x[0]
  assert np.max(histogram.y) == pytest.approx(1 / bin_width, rel=0.6)
  assert np.max(density.y) == pytest.approx(2 / bin_width / np.sqrt(2 * np.pi), rel=0.02)


def test_an_encoder_that_copies_everything_is_right_where_nothing_is_replaced():
  ids, inputs = np.asarray([[1, 2, 3, 0]]), np.asarray([[1, 9, 3, 0]])
  given = {"ids": ids, "input_ids": inputs, "copy": np.ones((1, 4), bool), "mixture": inputs, "lm": ids}
  replaced, original = detection.answer_shares(given, pad_id=0)
  assert replaced == {"tokens": "replaced", "count": 1, "copy": 0.0, "mixture": 0.0, "lm": 1.0}
  assert original == {"tokens": "original", "count": 2, "copy": 1.0, "mixture": 1.0, "lm": 1.0}
  assert detection.answer_shares(given | {"input_ids": ids}, pad_id=0)[0]["copy"] is None


def test_answers_that_need_no_learning():
  # Ids 0 and 1 are special; 2 was seen three times, 3 once and 4 never: with one more each, 4/7, 2/7 and 1/7.
  ids, unigram = np.array([[0, 2, 3, 1], [0, 4, 2, 0]]), np.array([90, 70, 3, 1, 0])
  expected = -(2 * np.log(4 / 7) + np.log(2 / 7) + np.log(1 / 7)) / 4
  assert evaluate.frequency_loss(ids, unigram, (0, 1)) == pytest.approx(expected, rel=1e-12)
  rng = np.random.default_rng(0)
  labels, scores = rng.random(20_000) < 0.15, rng.random(20_000)
  assert evaluate.ranking_area(labels, labels + 0.5 * scores) == 1.0
  assert evaluate.ranking_area(labels, -(labels + 0.5 * scores)) == 0.0
  assert evaluate.ranking_area(labels, np.zeros(20_000)) == 0.5
  assert evaluate.ranking_area(rng.permutation(labels), scores) == pytest.approx(0.5, abs=0.02)
  assert math.isnan(evaluate.ranking_area(np.ones(5, bool), scores[:5]))
  assert evaluate.commonest_share(np.array([7, 3, 7, 9])) == 0.5
  assert evaluate.commonest_share(np.array([], np.int32)) == 0.0


def test_the_first_rows_are_described_once_and_the_last_batch_is_filled_with_padding(small_records):
  config = small_run.small_config("mlm", small_records)
  run = small_run.small_run(config)
  records = prepared.open(reading_settings(config)).heldout

  def describe(run, params, ids, index):
    return {"ids": ids + params["shift"], "index": jnp.full(ids.shape[0], index)}

  made = evaluate.collect(run, {"shift": 100}, records, describe, rows=11)
  assert made["index"].tolist() == [0] * 8 + [1] * 8
  np.testing.assert_array_equal(made["ids"][:11] - 100, records.rows(0, 11))
  assert np.all(made["ids"][11:] - 100 == run.recipe.tokens.pad)
