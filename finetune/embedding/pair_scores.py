"""Scores similarities of pairs of texts against numbers, or against a yes or no. Imports no jax."""

import numpy as np
from scipy import stats
from sklearn import metrics

from finetune.papers.glue_metrics import pearson, spearman

RESAMPLES = 1000
_AT_ONCE = 1 << 22  # pairs of resamples in memory


def of_numbers(similarities: np.ndarray, gold: np.ndarray) -> dict[str, float]:
  """Returns Spearman's correlation with its 95 % interval, and Pearson's, of [pairs] float arrays.

  The interval is of a percentile bootstrap over pairs.
  """
  interval = stats.bootstrap(
    (similarities, gold),
    spearman,
    paired=True,
    vectorized=False,
    n_resamples=RESAMPLES,
    batch=max(1, _AT_ONCE // len(gold)),
    method="percentile",
    rng=0,
  ).confidence_interval
  scores = {"spearman": spearman(similarities, gold), "low": interval.low, "high": interval.high}
  return {name: float(value) for name, value in scores.items()} | {"pearson": pearson(similarities, gold)}


def of_classes(similarities: np.ndarray, gold: np.ndarray) -> dict[str, float]:
  """Returns average precision, and the best accuracy and F1 with their thresholds, of [pairs] arrays.

  A pair counts as positive if its similarity is at least the threshold. A threshold is halfway between the
  similarities that it separates; of equally good ones it is the highest. `gold` is 1 for a positive pair,
  else 0; both occur.
  """
  order = np.argsort(-similarities, kind="stable")
  ranked, positive = similarities[order], gold[order] == 1
  right = np.cumsum(positive)  # positive pairs at or above each rank
  above = np.arange(1, len(ranked) + 1)  # pairs there
  ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # a threshold keeps equal pairs together
  # Above the first rank: no pair is called positive.
  accuracy = np.append(np.sum(~positive), (2 * right - above + np.sum(~positive))[ends]) / len(ranked)
  f1 = 2 * right[ends] / (above[ends] + right[-1])
  best, best_f1 = int(np.argmax(accuracy)), int(np.argmax(f1))
  below = np.append(ranked[1:], ranked[-1])
  halfway = np.append(np.nextafter(ranked[0], np.inf, dtype=ranked.dtype), ((ranked + below) / 2)[ends])
  return {
    "average_precision": float(metrics.average_precision_score(gold, similarities)),
    "accuracy": float(accuracy[best]),
    "accuracy_threshold": float(halfway[best]),
    "f1": float(f1[best_f1]),
    "f1_threshold": float(halfway[best_f1 + 1]),
  }
