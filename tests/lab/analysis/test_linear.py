"""Linear probes on cases with a known answer."""

import numpy as np

from lab.analysis import linear


def test_a_probe_of_one_hot_features_is_perfect_and_of_noise_at_chance():
  random = np.random.default_rng(0)
  labels = random.integers(0, 4, 2_000).astype(str)
  one_hot = np.eye(4)[labels.astype(int)]
  train, test = slice(0, 1_000), slice(1_000, 2_000)
  assert (linear.predictions(one_hot[train], labels[train], one_hot[test]) == labels[test]).all()
  noise = random.normal(size=(2_000, 5))
  right = (linear.predictions(noise[train], labels[train], noise[test]) == labels[test]).mean()
  assert abs(right - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 1_000)


def test_a_bag_knows_words_and_no_order():
  bags = [["good", "film"], ["Film", "good"], ["bad", "film"], ["film", "bad"]]
  found = linear.bag_predictions(bags, ["1", "1", "0", "0"], [["the", "GOOD"], ["bad", "bad"]])
  assert found.tolist() == ["1", "0"]


def test_the_commonest_answer_of_a_word_and_of_words_seen_once():
  words = ["a", "a", "a", "b", "c", "d", "e"]
  labels = ["x", "y", "x", "n", "n", "n", "z"]
  assert linear.commonest_answers(words, labels, ["a", "e", "unseen"]).tolist() == ["x", "z", "n"]


def test_cosines_and_rank_correlation_by_hand():
  first, second = (
    np.asarray([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]]),
    np.asarray([[2.0, 0.0], [4.0, -3.0], [1, 1]]),
  )
  np.testing.assert_allclose(linear.cosines(first, second), [1.0, 0.0, 0.0], atol=1e-12)
  assert linear.rank_correlation(np.asarray([1.0, 5.0, 7.0]), np.asarray([0.1, 0.2, 9.0])) == 1.0
  assert np.isnan(linear.rank_correlation(np.ones(3), np.arange(3)))
  same, other = linear.bag_cosines(["a b", "a b"], ["b a", "c d"])
  assert abs(same - 1) < 1e-12 and other == 0
