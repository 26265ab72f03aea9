"""Groups the metrics of runs into charts, with names, units and axes."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from data.errors import ConfigError
from data.page import Curve, Plot, shown
from pretrain.logs import metrics
from pretrain.report.runs import ShownRun

MOST_POINTS, FEWEST_POINTS = 300, 40  # of a curve; more would be less than a pixel apart
ALL_POINTS = 60_000  # of a page, about; thirty bytes each
_MOST_DOTS = 60  # curves with more points have no markers
Axis = Literal["step", "token", "hour"]
Place = Callable[[np.ndarray], np.ndarray]  # from steps to positions on the axis
TRAIN, HELD_OUT = "train/", "eval/"
_TWIN = "perf/steps_per_second"  # not shown: the same curve as tokens per second
_BASELINE, _MASKED_LM = HELD_OUT + metrics.FREQUENCY_LOSS, "masked_lm_loss"

# (pattern of a metric's name, unit); the first match counts.
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
# (size, label) of a horizontal axis; the first that its end reaches counts.
_SIZES = {
  "token": (
    (1e9, "tokens (billions)"),
    (1e6, "tokens (millions)"),
    (1e3, "tokens (thousands)"),
    (1, "tokens"),
  ),
  "hour": ((1, "hours of training"), (1 / 60, "minutes of training")),
}
# Sections in their order: (title, pattern of a metric's name).
SECTIONS = (
  ("Loss and its terms", r"loss$|^source_loss/"),
  ("Probes of frozen states", r"^probe/"),
  ("Learning rate and speed", r"^perf/|learning_rate$|grad_norm$"),
  ("Accuracy", r"accuracy"),
  ("Other metrics", r""),
)
# Endings that name a part of a metric: 'rtd_accuracy_replaced', 'generator_loss_layer_4'.
_PART = re.compile(
  r"_((?:layer|generator)_\d+|original|replaced|untouched|masked_correct|positive|negative)$|(?<=.)/(\w+)$"
)


def charts(runs: Sequence[ShownRun], over: Axis = "step") -> tuple[dict[str, list[Plot]], dict[str, float]]:
  """Returns {section: its charts}, and {metric: value} of constant metrics, which have no chart.

  A page about one run has a colour for each part of a metric, a page about several one for each run. The
  loss has no chart of its own where it is that of masked LM, beside which one run's page has the baseline.

  Raises:
    ConfigError: a run lacks the data for the axis.
  """
  axis, places = _axis(runs, over)
  values = [_values(run.lines) for run in runs]
  hidden = {_TWIN, _BASELINE}
  if all(of_run.get(f"{HELD_OUT}loss") == of_run.get(HELD_OUT + _MASKED_LM, {}) for of_run in values):
    hidden |= {f"{TRAIN}loss", f"{HELD_OUT}loss"}
  names = [name for name in dict.fromkeys(name for of_run in values for name in of_run) if name not in hidden]
  constant, families = {}, dict[str, list[str]]()
  for name in dict.fromkeys(name.removeprefix(TRAIN).removeprefix(HELD_OUT) for name in names):
    numbers = [
      v for of_run in values for side in (TRAIN, HELD_OUT, "") for v in of_run.get(side + name, {}).values()
    ]
    if len(set(numbers)) == 1 and len(numbers) > 1:
      constant[name] = numbers[0]
    else:
      family = name if len(runs) > 1 or name.startswith("perf/") else _PART.sub("", name)
      families.setdefault(family, []).append(name)
  made: dict[str, list[Plot]] = {title: [] for title, _ in SECTIONS}
  most = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, 2 * len(names) * len(runs))))
  for family, members in families.items():
    title = next(title for title, pattern in SECTIONS if re.search(pattern, family))
    curves = list(_curves(family, members, runs, values, places, most=most))
    if family == _MASKED_LM and len(runs) == 1 and (points := values[0].get(_BASELINE)):
      steps, numbers = np.asarray([*points]), np.asarray([*points.values()])
      note = shown(float(numbers[-1]))
      curves.append(
        Curve("token frequencies alone", places[0](steps), numbers, len(curves), note, is_dashed=True)
      )
    unit = next((unit for pattern, unit in _UNITS if re.search(pattern, family)), "")
    words = _words(family)
    plot = Plot("", words, axis, "" if unit == words else unit, curves, y_limits=_limits(curves))
    made[title].append(plot)
  for of_section in made.values():
    of_section.sort(key=lambda chart: chart.title != "loss")  # the total loss before its terms
  return {title: of_section for title, of_section in made.items() if of_section}, constant


def _axis(runs: Sequence[ShownRun], over: Axis) -> tuple[str, list[Place]]:
  """Returns the horizontal axis' label, and for each run a function from steps to the axis."""
  if over == "step":
    return "step", [lambda steps: steps] * len(runs)
  places: list[Place] = []
  for run in runs:
    clock = metrics.hours(run.lines)
    if not (run.tokens(1) if over == "token" else len(clock[0]) > 1):
      lacking = "batch size in config.json" if over == "token" else "speed (perf/steps_per_second)"
      raise ConfigError(
        f"--over={over} needs every run's {lacking}, which {run.name} lacks; use\n  --over=step"
      )
    if over == "token":
      places.append(lambda steps, run=run: np.array([run.tokens(step) for step in steps]))
    else:
      places.append(lambda steps, clock=clock: np.interp(steps, *clock))
  most = max(place(np.array([run.step]))[0] for run, place in zip(runs, places))
  size, label = next((pair for pair in _SIZES[over] if most >= pair[0]), _SIZES[over][-1])
  return label, [lambda steps, place=place: place(steps) / size for place in places]


def _limits(curves: Sequence[Curve]) -> tuple[float, float] | None:
  """Returns the range of the vertical axis without a few outliers; None for all values."""
  values = np.concatenate([curve.y for curve in curves])
  near, far = np.quantile(values, [0.02, 0.98])
  margin = 1.5 * (far - near)
  low, high = max(values.min(), near - margin), min(values.max(), far + margin)
  if len(values) < 20 or margin == 0 or (low == values.min() and high == values.max()):
    return None
  return float(low), float(high)


def _values(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
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
  places: Sequence[Place],
  *,
  most: int,
) -> Iterator[Curve]:
  """Yields each run's training and held-out curves; with over two metrics only the longer of the two."""
  for at, (run, of_run) in enumerate(zip(runs, values)):
    for number, member in enumerate(members):
      sides = [side for side in (TRAIN, HELD_OUT, "") if side + member in of_run]
      if len(members) > 2:  # more lines would hide each other
        sides = [max(sides, key=lambda side: len(of_run[side + member]))] if sides else []
      part = _words(member.removeprefix(family)).strip() or ("all" if len(members) > 1 else "")
      if member.startswith(metrics.SOURCE_LOSS):
        part = member.removeprefix(metrics.SOURCE_LOSS)  # a directory's name, unchanged
      for side in sides:
        points = of_run[side + member]
        where = {TRAIN: "training", HELD_OUT: "held out", "": ""}[side]
        name = ", ".join(filter(None, (run.name if len(runs) > 1 else "", part, where)))
        steps, numbers = _thinned(np.asarray([*points]), np.asarray([*points.values()]), most)
        colour = at if len(runs) > 1 else number
        is_held_out = side == HELD_OUT or member.startswith("probe/")
        yield Curve(
          name,
          places[at](steps),
          numbers,
          colour,
          note=shown(float(numbers[-1])),
          is_dashed=is_held_out,
          has_dots=is_held_out and len(steps) <= _MOST_DOTS,
        )


def _words(name: str) -> str:
  return name.removeprefix("perf/").removeprefix("probe/").replace("_", " ").replace("/", ", ").strip(", ")


def _thinned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns at most `most` of the points, in order, with the minimum and maximum of every stretch."""
  order = np.argsort(steps, kind="stable")
  steps, values = steps[order], values[order]
  if len(steps) <= most:
    return steps, values
  kept = {0, len(steps) - 1}
  for stretch in np.array_split(np.arange(len(steps)), most // 2 - 1):
    kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
  chosen = sorted(kept)
  return steps[chosen], values[chosen]
