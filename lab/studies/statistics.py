"""Differences over seeds."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95  # of an interval
DRAWS = 10_000  # of a bootstrap


class Difference(NamedTuple):
  """A mean of differences of the same seeds; without an interval where there is one seed."""

  mean: float
  low: float | None
  high: float | None
  seeds: int
  above: int  # of them, seeds with a difference above 0


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
  """{seed: value} minus {seed: value} with Student's interval at `LEVEL`; None if no seed is in both."""
  seeds = sorted(values.keys() & base.keys())
  if not seeds:
    return None
  differences = np.asarray([values[seed] - base[seed] for seed in seeds])
  mean, above = float(differences.mean()), int((differences > 0).sum())
  if len(seeds) < 2:
    return Difference(mean, None, None, 1, above)
  half = stats.t.ppf((1 + LEVEL) / 2, len(seeds) - 1) * differences.std(ddof=1) / math.sqrt(len(seeds))
  return Difference(mean, mean - float(half), mean + float(half), len(seeds), above)


def reached(points: Mapping[int, float], level: float) -> float:
  """The step at which values by step are at a level first, by lines over the logarithm of the step.

  The first step where they begin there, the last where they never are.
  """
  steps = sorted(points)
  if points[steps[0]] >= level:
    return steps[0]
  for before, step in itertools.pairwise(steps):
    if points[step] >= level:
      share = (level - points[before]) / (points[step] - points[before])
      return before * (step / before) ** share
  return steps[-1]


def bootstrap(values: Sequence[float]) -> tuple[float, float, float]:
  """Geometric mean of positive values, and the interval at `LEVEL` of that of draws of as many of them."""
  logs = np.log(values)
  draws = np.random.default_rng(0).choice(logs, (DRAWS, len(logs))).mean(axis=1)
  low, high = np.exp(np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
  return float(np.exp(logs.mean())), float(low), float(high)
