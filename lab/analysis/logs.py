"""Analyses of logged metrics over time: mixture weights and generator losses by depth."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.page import Curve, Plot
from lab.analysis.request import LeftOut, Outcome, Request
from pretrain.checkpoints import checkpoint
from pretrain.logs import metrics

DECAY = 0.9  # of the average over logging intervals


def smoothed(values: np.ndarray, decay: float = DECAY) -> np.ndarray:
  """Returns exponential moving averages [n], corrected for the bias at the beginning."""
  total, weight, averages = 0.0, 0.0, []
  for value in values.tolist():
    total, weight = decay * total + (1 - decay) * value, decay * weight + (1 - decay)
    averages.append(total / weight)
  return np.asarray(averages)


def series(lines: Sequence[Mapping[str, Any]], pattern: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns the logged values of metrics that match a regex: {its group 1: (steps, values)}, [points]."""
  curves: dict[str, tuple[list, list]] = {}
  for line in lines:
    for name, value in line.items():
      matched = re.fullmatch(pattern, name)
      if matched and isinstance(value, float):
        steps, values = curves.setdefault(matched[1] or "", ([], []))
        steps.append(line["step"])
        values.append(value)
  return {name: (np.asarray(steps), np.asarray(values)) for name, (steps, values) in curves.items()}


def _lines(request: Request) -> list[tuple[str, list[dict[str, Any]]]]:
  places = [checkpoint.step_path(directory).parent.parent for directory in request.directories]
  return [(name, metrics.read(place)) for name, place in zip(request.names, places)]


def _over_steps(request: Request, pattern: str, *, missing: str, plot: Plot, notes: Sequence[str]) -> Outcome:
  """Plots, over steps, smoothed curves of the logged metrics whose names match `pattern`."""
  rows, curves, left_out = [], [], LeftOut()
  for name, lines in _lines(request):
    logged = series(lines, pattern)
    if len(logged) > 1:
      logged.pop("", None)  # the sum over the parts
    if not logged:
      left_out[name] = f"{missing}, which {name} has not logged"
    for part, (steps, values) in logged.items():
      even = smoothed(values)
      prefix = f"{name}, " if len(request.names) > 1 else ""
      curves.append(Curve(f"{prefix}{part.replace('_', ' ') or 'generator'}", steps, even))
      ends = {"start": float(even[0]), "end": float(even[-1]), "highest": float(even.max())}
      rows.append(
        {"checkpoint": name, "of": part.replace("_", " ") or "generator", "points": len(steps), **ends}
      )
  filled = Plot(plot.stem, plot.title, plot.x_label, plot.y_label, curves)
  averaged = f"Averages over logging intervals with decay {DECAY}, corrected for their beginning."
  return Outcome(plot.title, rows, [filled], [averaged, *notes], left_out.sentences(rows))


def mixture(request: Request) -> Outcome:
  """Returns the mixture weight of every generator layer, and of the best one, over steps (AMOS figure 5a)."""
  outcome = _over_steps(
    request,
    r"train/mixture_weight_(.+)",
    missing="metrics of a mixture of generator layers",
    plot=Plot(
      "mixture", "Mixture weights of generator layers", "step", "mean weight at masked positions", ()
    ),
    notes=[
      "Mean over masked positions; the weights of a run sum to 1.",
      "Best head: the one with the lowest mean loss over the run.",
    ],
  )
  best = [row for name, lines in _lines(request) for row in _best_head(lines, name, outcome.rows)]
  return dataclasses.replace(outcome, rows=[*outcome.rows, *best])


def _best_head(
  lines: Sequence[Mapping[str, Any]], name: str, rows: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
  """Returns the row of the run's head with the lowest mean loss, as 'best head'; [] without losses."""
  losses = series(lines, r"train/generator_loss_(.+)")
  best = min(losses, key=lambda head: losses[head][1].mean(), default="").replace("_", " ")
  return [{**row, "of": "best head"} for row in rows if (row["checkpoint"], row["of"]) == (name, best)]


def generator(request: Request) -> Outcome:
  """Returns the loss of every generator head over steps (AMOS figure 1b)."""
  return _over_steps(
    request,
    r"train/generator_loss(?:_(.+))?",
    missing="metrics of a generator's loss",
    plot=Plot("generator_loss", "Loss of the generator, by depth", "step", "nats per masked token", ()),
    notes=["Of a generator with several heads, that of each head."],
  )
