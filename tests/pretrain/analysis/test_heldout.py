"""Answers that need no learning, on cases whose value is known, and which held-out rows are described."""

import math

import jax
import numpy as np
import pytest

from pretrain import prepared
from pretrain.analysis import heldout
from tests.pretrain import small_run
from tests.pretrain.small_recipe import TOKENS


def answers(arrays, unigram):
  return heldout.frequency_answers(arrays, unigram, pad_id=TOKENS.pad, cls_id=TOKENS.cls)


def test_equally_frequent_tokens_cost_the_log_of_the_vocabulary():
  ids = np.random.default_rng(0).integers(5, 97, (3, 16))
  arrays = {"ids": ids, "input_ids": np.where(ids % 4 == 0, ids - 1, ids), "selected": ids % 2 == 0}
  found = answers(arrays, np.full(97, 1_000))
  assert found.masked == pytest.approx(math.log(97))
  assert found.replaced == pytest.approx(math.log(97))


def test_answers_by_frequency_are_worked_by_hand():
  # [CLS] (id 0), token 5, twice as frequent, and token 6. Of the masked, only the second was replaced.
  arrays = {
    "ids": np.array([[0, 5, 6, 5]]),
    "input_ids": np.array([[0, 6, 6, 5]]),
    "selected": np.array([[True, True, True, False]]),
  }
  found = answers(arrays, np.array([1e9, 0, 0, 0, 0, 2e9, 1e9]))
  # A quarter of all tokens is replaced. One is added to every count, hence the tolerance.
  kept, generated = -np.log(3 / 4 + 1 / 4 / 4), -np.log(1 / 4 / 2)
  assert found.masked == pytest.approx((2 * np.log(4) + np.log(2)) / 3, abs=1e-6)
  assert found.replaced == pytest.approx(np.log(2), abs=1e-6)
  assert found.corrected == pytest.approx((2 * kept + generated) / 3, abs=1e-6)
  # [CLS] costs nothing then, and the others have its share: 2/3 and 1/3.
  known = (np.log(3 / 2) + np.log(3)) / 3
  assert found.cls_gain == pytest.approx(found.masked - known, abs=1e-6)


def test_where_nothing_was_replaced_only_masked_tokens_cost_something():
  ids = np.array([[0, 5, 6, 1]])
  found = answers({"ids": ids, "input_ids": ids, "selected": ids == 5}, np.ones(97))
  assert (found.replaced, found.corrected) == (0.0, 0.0)
  assert found.masked > 0


def test_frequencies_are_probabilities_and_none_is_zero():
  frequencies = heldout.token_frequencies(np.array([0, 1, 6]))
  assert frequencies.tolist() == [0.1, 0.2, 0.7]


def test_the_area_is_one_for_the_right_order_and_a_half_for_guessing():
  rng = np.random.default_rng(0)
  labels, scores = rng.random(20_000) < 0.15, rng.random(20_000)
  assert heldout.ranking_area(labels, labels + 0.5 * scores) == 1.0
  assert heldout.ranking_area(labels, -(labels + 0.5 * scores)) == 0.0
  assert heldout.ranking_area(labels, np.zeros(20_000)) == 0.5
  assert heldout.ranking_area(rng.permutation(labels), scores) == pytest.approx(0.5, abs=0.02)
  assert math.isnan(heldout.ranking_area(np.ones(5, bool), scores[:5]))


def test_the_entropy_of_a_rate():
  assert heldout.entropy(0.5) == pytest.approx(math.log(2))
  assert heldout.entropy(0.15) == pytest.approx(-0.15 * math.log(0.15) - 0.85 * math.log(0.85))
  assert (heldout.entropy(0.0), heldout.entropy(1.0)) == (0.0, 0.0)


def test_the_share_of_the_commonest_token():
  assert heldout.commonest_share(np.array([7, 3, 7, 9])) == 0.5
  assert heldout.commonest_share(np.array([], np.int32)) == 0.0


def test_the_first_rows_are_described_once_and_the_last_batch_is_filled_with_padding(small_records):
  config = small_run.small_config("mlm", small_records)
  run = small_run.small_run(config)
  records = prepared.open(config).heldout

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
