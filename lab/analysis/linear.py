"""Linear probes: what can be read off frozen vectors by a classifier that has nothing else."""

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np

MOST_ROWS = 20_000  # of training: a linear probe gains little from more, and takes minutes


def predictions(train: np.ndarray, labels: Sequence[str], test: np.ndarray) -> np.ndarray:
  """Labels of `test` [n, features] by logistic regression on the first `MOST_ROWS` of `train` [m, features].

  Features are standardised and the penalty is scikit-learn's own (C = 1): nothing is chosen by `test`.
  Where all labels are the same that one is the answer.
  """
  known = np.asarray(labels)[:MOST_ROWS]
  if (known == known[0]).all():
    return np.full(len(test), known[0])
  from sklearn.exceptions import ConvergenceWarning  # here: a second to import
  from sklearn.linear_model import LogisticRegression
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler

  model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=100))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # 100 steps are the probe; more change little
    model.fit(train[:MOST_ROWS], known)
  return model.predict(test)


def bag_predictions(
  train: Sequence[Sequence[str]], labels: Sequence[str], test: Sequence[Sequence[str]]
) -> np.ndarray:
  """Labels of `test` by logistic regression on which words there are, in whatever order; no model is used.

  Where all labels are the same that one is the answer.
  """
  if len(set(labels)) == 1:
    return np.full(len(test), labels[0])
  from sklearn.feature_extraction.text import CountVectorizer
  from sklearn.linear_model import LogisticRegression

  counted = CountVectorizer(token_pattern=r"\S+", binary=True)  # lower case
  seen = counted.fit_transform(" ".join(words) for words in train)
  model = LogisticRegression(max_iter=200).fit(seen, np.asarray(labels))
  return model.predict(counted.transform(" ".join(words) for words in test))


def commonest_answers(train: Sequence[str], labels: Sequence[str], test: Sequence[str]) -> np.ndarray:
  """The commonest label of each word in training; of a word that was not there, that of words seen once."""
  of_word: dict[str, Counter] = {}
  for word, label in zip(train, labels, strict=True):
    of_word.setdefault(word, Counter())[label] += 1
  once = Counter(label for counts in of_word.values() if counts.total() == 1 for label in counts)
  rare = (once or Counter(labels)).most_common(1)[0][0]
  return np.asarray([of_word[word].most_common(1)[0][0] if word in of_word else rare for word in test])


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Cosines of vectors [n, width] with those in the same rows; 0 where one is zero."""
  sizes = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
  return np.einsum("nw,nw->n", first, second) / np.where(sizes > 0, sizes, 1.0)


def bag_cosines(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
  """Cosines of bags of words, rare words counting more (tf-idf over all texts given)."""
  from sklearn.feature_extraction.text import TfidfVectorizer

  vectors = TfidfVectorizer(token_pattern=r"\S+").fit_transform([*first, *second])
  return np.asarray(vectors[: len(first)].multiply(vectors[len(first) :]).sum(axis=1)).ravel()


def rank_correlation(values: np.ndarray, gold: np.ndarray) -> float:
  """Spearman's correlation; NaN if all of either are equal."""
  from scipy.stats import spearmanr

  return float(spearmanr(values, gold)[0]) if np.ptp(values) and np.ptp(gold) else float("nan")
