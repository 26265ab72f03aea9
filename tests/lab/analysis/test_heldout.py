"""Answers that need no learning, on cases whose value is known, and which held-out rows are described."""

import math

import jax
import numpy as np
import pytest

from pretrain.logs import heldout
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests.pretrain import small_run


def test_the_cross_entropy_of_frequencies_gives_every_token_a_probability():
  found = heldout.unigram_cross_entropy(np.array([2, 0, 2]), np.array([0, 1, 6]))
  assert found == pytest.approx(-(2 * np.log(0.7) + np.log(0.1)) / 3, rel=1e-12)


def test_frequencies_with_special_tokens_are_worth_less_where_none_is_asked_for():
  ids, unigram = np.array([2, 3, 2, 4]), np.array([90, 70, 3, 1, 0])
  assert heldout.unigram_cross_entropy(ids, unigram) == pytest.approx(
    heldout.frequency_loss(ids, unigram, ())
  )
  assert heldout.unigram_cross_entropy(ids, unigram) > heldout.frequency_loss(ids, unigram, (0, 1))


def test_the_area_is_one_for_the_right_order_and_a_half_for_guessing():
  rng = np.random.default_rng(0)
  labels, scores = rng.random(20_000) < 0.15, rng.random(20_000)
  assert heldout.ranking_area(labels, labels + 0.5 * scores) == 1.0
  assert heldout.ranking_area(labels, -(labels + 0.5 * scores)) == 0.0
  assert heldout.ranking_area(labels, np.zeros(20_000)) == 0.5
  assert heldout.ranking_area(rng.permutation(labels), scores) == pytest.approx(0.5, abs=0.02)
  assert math.isnan(heldout.ranking_area(np.ones(5, bool), scores[:5]))


def test_the_share_of_the_commonest_token():
  assert heldout.commonest_share(np.array([7, 3, 7, 9])) == 0.5
  assert heldout.commonest_share(np.array([], np.int32)) == 0.0


def test_the_first_rows_are_described_once_and_the_last_batch_is_filled_with_padding(small_records):
  config = small_run.small_config("mlm", small_records)
  run = small_run.small_run(config)
  records = prepared.open(reading_settings(config)).heldout

  def describe(run, params, ids, index):
    return {"ids": ids + params["shift"], "index": jax.numpy.full(ids.shape[0], index)}

  made = heldout.collect(run, {"shift": 100}, records, describe, rows=11)
  assert made["index"].tolist() == [0] * 8 + [1] * 8
  np.testing.assert_array_equal(made["ids"][:11] - 100, records.rows(0, 11))
  assert np.all(made["ids"][11:] - 100 == run.recipe.tokens.pad)


def test_the_loss_of_frequencies_leaves_special_tokens_out():
  # Ids 0 and 1 are special; 2 was seen three times, 3 once and 4 never: with one more each, 4/7, 2/7 and 1/7.
  ids, unigram = np.array([[0, 2, 3, 1], [0, 4, 2, 0]]), np.array([90, 70, 3, 1, 0])
  expected = -(2 * np.log(4 / 7) + np.log(2 / 7) + np.log(1 / 7)) / 4
  assert heldout.frequency_loss(ids, unigram, (0, 1)) == pytest.approx(expected, rel=1e-12)
