"""Linear classifiers on frozen vectors, cosines, and baselines on bags of words."""

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np

MOST_ROWS = 20_000  # for training; more rows take minutes and hardly improve a linear probe


def predictions(train: np.ndarray, labels: Sequence[str], test: np.ndarray) -> np.ndarray:
  """Predicts labels of `test` [n, features] by logistic regression on `train` [m, features].

  At most `MOST_ROWS` rows train. Features are standardised, the penalty is scikit-learn's default (C = 1),
  and nothing is tuned on `test`. If all labels are equal, that label is predicted.
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
    warnings.simplefilter("ignore", ConvergenceWarning)  # 100 steps by definition; more change little
    model.fit(train[:MOST_ROWS], known)
  return model.predict(test)


def bag_predictions(
  train: Sequence[Sequence[str]], labels: Sequence[str], test: Sequence[Sequence[str]]
) -> np.ndarray:
  """Predicts labels of `test` by logistic regression on bags of words, a baseline without a model.

  If all labels are equal, that label is predicted.
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
  """Predicts each word's most frequent training label; for unseen words, that of words seen once."""
  of_word: dict[str, Counter] = {}
  for word, label in zip(train, labels, strict=True):
    of_word.setdefault(word, Counter())[label] += 1
  once = Counter(label for counts in of_word.values() if counts.total() == 1 for label in counts)
  rare = (once or Counter(labels)).most_common(1)[0][0]
  return np.asarray([of_word[word].most_common(1)[0][0] if word in of_word else rare for word in test])


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns the cosines of the rows of two arrays [n, width]; 0 if a row is zero."""
  sizes = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
  return np.einsum("nw,nw->n", first, second) / np.where(sizes > 0, sizes, 1.0)


def bag_cosines(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
  """Returns the cosines of tf-idf bags of words of two lists of texts."""
  from sklearn.feature_extraction.text import TfidfVectorizer

  vectors = TfidfVectorizer(token_pattern=r"\S+").fit_transform([*first, *second])
  return np.asarray(vectors[: len(first)].multiply(vectors[len(first) :]).sum(axis=1)).ravel()


def rank_correlation(values: np.ndarray, gold: np.ndarray) -> float:
  """Returns Spearman's correlation; NaN if all values or all gold scores are equal."""
  from scipy.stats import spearmanr

  return float(spearmanr(values, gold)[0]) if np.ptp(values) and np.ptp(gold) else float("nan")
