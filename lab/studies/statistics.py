"""Computes paired differences over seeds, with confidence intervals."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95  # of the confidence interval


class Difference(NamedTuple):
  """Mean difference of two arms over equal seeds, and its interval; low, high are None with one seed."""

  mean: float
  low: float | None
  high: float | None
  seeds: int
  above: int  # number of seeds with a difference above 0


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
  """Returns the mean of `values` - `base` over common seeds, with Student's interval; None without any."""
  seeds = sorted(values.keys() & base.keys())
  if not seeds:
    return None
  differences = np.asarray([values[seed] - base[seed] for seed in seeds])
  mean, above = float(differences.mean()), int((differences > 0).sum())
  if len(seeds) < 2:
    return Difference(mean, None, None, 1, above)
  half = stats.t.ppf((1 + LEVEL) / 2, len(seeds) - 1) * differences.std(ddof=1) / math.sqrt(len(seeds))
  return Difference(mean, mean - float(half), mean + float(half), len(seeds), above)
