"""From the lines of metrics files to charts: which curves stand together, their names, units and x axes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data.page.drawing import Axis, Chart, Curve
from pretrain.logs import metrics
from pretrain.report.runs import ShownRun

MOST_POINTS, FEWEST_POINTS = 300, 40  # of a curve; more would be no wider than a pixel
ALL_POINTS = 60_000  # of a page, about: twelve bytes each and axis
TRAIN, HELD_OUT = "train/", "eval/"
_TWIN = "perf/steps_per_second"  # has the shape of the tokens per second

# (pattern of a metric's name, unit); the first that fits.
_UNITS = (
  (r"tokens_per_second$", "tokens per second"),
  (r"mfu$", "fraction of the devices' peak"),
  (r"learning_rate$", "learning rate"),
  (r"grad_norm$", "L2 norm"),
  (r"skipped|spikes", "updates"),
  (r"loss|cross_entropy", "nats"),
  (r"cosine", "cosine"),
  (r"accuracy|rate$|mixture_weight", "fraction"),
  (r"^probe/similarity", "Spearman's correlation"),
  (r"^probe/", "accuracy, fraction"),
)
# Sections in their order: (title, pattern of a metric's name).
SECTIONS = (
  ("Loss and its terms", r"loss$|^source_loss/"),
  ("What frozen states know", r"^probe/"),
  ("Learning rate and speed", r"^perf/|learning_rate$|grad_norm$"),
  ("Right answers", r"accuracy"),
  ("Other metrics", r""),
)
# The end of a name that says which part of a metric it is: 'rtd_accuracy_replaced', 'generator_loss_layer_4'.
_PART = re.compile(
  r"_((?:layer|generator)_\d+|original|replaced|untouched|masked_correct|positive|negative)$|(?<=.)/(\w+)$"
)


def axes(runs: Sequence[ShownRun]) -> list[Axis]:
  """Steps, and tokens and hours where all runs say how many."""
  choices = [Axis("step", "step", [lambda steps: steps.astype(float)] * len(runs))]
  if all(run.tokens_per_step for run in runs):
    most = max(run.step * run.tokens_per_step for run in runs)
    unit, size = next(
      (pair for pair in (("billions", 1e9), ("millions", 1e6), ("thousands", 1e3)) if most >= pair[1]),
      ("", 1.0),
    )
    scales = [run.tokens_per_step / size for run in runs]
    label = f"tokens ({unit})" if unit else "tokens"
    choices.append(Axis("token", label, [lambda steps, scale=scale: steps * scale for scale in scales]))
  clocks = [metrics.hours(run.lines) for run in runs]
  if all(len(steps) > 1 for steps, _ in clocks):
    is_short = max(taken[-1] for _, taken in clocks) < 1
    label, factor = ("minutes of training", 60.0) if is_short else ("hours of training", 1.0)
    choices.append(
      Axis(
        "hour",
        label,
        [lambda steps, clock=clock: factor * np.interp(steps, *clock) for clock in clocks],
      )
    )
  return choices


def charts(runs: Sequence[ShownRun]) -> tuple[dict[str, list[Chart]], dict[str, float]]:
  """{section: its charts}, and {metric: value} of metrics that never changed, of which there is no chart.

  One run has a colour for each part of a metric, several have one for each run.
  """
  values = [_values(run.lines) for run in runs]
  names = [name for name in dict.fromkeys(name for of_run in values for name in of_run) if name != _TWIN]
  constant, families = {}, dict[str, list[str]]()
  for name in dict.fromkeys(plain(name) for name in names):
    numbers = [
      v for of_run in values for side in (TRAIN, HELD_OUT, "") for v in of_run.get(side + name, {}).values()
    ]
    if len(set(numbers)) == 1 and len(numbers) > 1:
      constant[name] = numbers[0]
    else:
      family = name if len(runs) > 1 or name.startswith("perf/") else _PART.sub("", name)
      families.setdefault(family, []).append(name)
  made: dict[str, list[Chart]] = {}
  most = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, 2 * len(names) * len(runs))))
  for family, members in families.items():
    title = next(title for title, pattern in SECTIONS if re.search(pattern, family))
    curves = list(_curves(family, members, runs, values, most=most))
    unit = next((unit for pattern, unit in _UNITS if re.search(pattern, family)), "")
    made.setdefault(title, []).append(Chart(_words(family), unit, curves))
  order = [title for title, _ in SECTIONS]
  for of_section in made.values():
    of_section.sort(key=lambda chart: chart.title != "loss")  # the sum before its terms
  return dict(sorted(made.items(), key=lambda item: order.index(item[0]))), constant


def plain(name: str) -> str:
  """A metric's name without the side that it was measured on."""
  return name.removeprefix(TRAIN).removeprefix(HELD_OUT)


def _values(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
  """{metric: {step: value}}, finite numbers only."""
  by_metric: dict[str, dict[int, float]] = {}
  for line in lines:
    for name, value in line.items():
      is_number = isinstance(value, int | float) and not isinstance(value, bool)
      if name != "step" and is_number and math.isfinite(value):
        by_metric.setdefault(name, {})[line["step"]] = float(value)
  return by_metric


def _curves(
  family: str,
  members: Sequence[str],
  runs: Sequence[ShownRun],
  values: Sequence[dict[str, dict[int, float]]],
  *,
  most: int,
) -> Iterator[Curve]:
  """Draws both sides of every run and member; of more than two members that with more points."""
  for at, (run, of_run) in enumerate(zip(runs, values)):
    for number, member in enumerate(members):
      sides = [side for side in (TRAIN, HELD_OUT, "") if side + member in of_run]
      if len(members) > 2:  # twice as many lines would hide each other
        sides = [max(sides, key=lambda side: len(of_run[side + member]))] if sides else []
      part = _words(member.removeprefix(family)).strip() or ("all" if len(members) > 1 else "")
      if member.startswith(metrics.SOURCE_LOSS):
        part = member.removeprefix(metrics.SOURCE_LOSS)  # a directory's name, as it is
      for side in sides:
        points = of_run[side + member]
        where = {TRAIN: "training", HELD_OUT: "held out", "": ""}[side]
        name = ", ".join(filter(None, (run.name if len(runs) > 1 else "", part, where)))
        steps, numbers = _thinned(np.asarray([*points]), np.asarray([*points.values()]), most)
        colour = at if len(runs) > 1 else number
        yield Curve(name, at, steps, numbers, colour, side == HELD_OUT or member.startswith("probe/"))


def _words(name: str) -> str:
  return name.removeprefix("perf/").removeprefix("probe/").replace("_", " ").replace("/", ", ").strip(", ")


def _thinned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
  """At most `most` of [n] points in order, among them the lowest and the highest of every stretch."""
  order = np.argsort(steps, kind="stable")
  steps, values = steps[order], values[order]
  if len(steps) <= most:
    return steps, values
  kept = {0, len(steps) - 1}
  for stretch in np.array_split(np.arange(len(steps)), most // 2 - 1):
    kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
  chosen = sorted(kept)
  return steps[chosen], values[chosen]
