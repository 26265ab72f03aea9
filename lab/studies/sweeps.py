"""Rows that differ by the value of one field, as plots over it (COCO-LM figure 4)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.analysis.outcome import Curve, Plot, stem_of
from lab.studies.cells import Asked
from lab.studies.statistics import LEVEL, paired


def plots(asked: Asked, rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
  """A plot for each sweep and group of measures, of the `rows` of a table.

  Points are means over seeds after the last step, with the interval of the mean; one seed has none. A sweep
  of which fewer than two values are finished has no plot.
  """
  made = []
  for name, sweep in asked.study.sweeps.items():
    groups: dict[str, dict[str, dict[float, Mapping[int, float]]]] = {}
    for row in rows:
      arm = row["row"]
      if arm in sweep.values and row["step"] == asked.steps(asked.study.arms[arm])[-1]:
        group, _, kind = row["measure"].partition(", ")
        groups.setdefault(group, {}).setdefault(kind or group, {})[sweep.values[arm]] = row["of seed"]
    for group, kinds in groups.items():
      curves = [_curve(kind, points) for kind, points in kinds.items() if len(points) > 1]
      if curves:
        stem = f"{name}_{stem_of(group)}"
        label = f"mean over seeds, {LEVEL:.0%} interval"
        made.append(Plot(stem, group.capitalize(), sweep.label, label, curves))
  return made


def _curve(name: str, points: Mapping[float, Mapping[int, float]]) -> Curve:
  """A plot of one measure, from {value of the field: {seed: score}}."""
  at = sorted(points)
  found = [paired(points[value], dict.fromkeys(points[value], 0.0)) for value in at]
  ends = [(one.mean, one.low, one.high) for one in found if one is not None]
  means, lows, highs = (np.asarray([np.nan if end is None else end for end in side]) for side in zip(*ends))
  return Curve(name, np.asarray(at), means, has_dots=True, low=lows, high=highs)
