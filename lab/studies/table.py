"""Makes the table of a study: means over seeds, and differences from other arms or earlier steps."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from data.tables import Column, Report, Row, text_column
from lab.studies.cells import Asked, finished, reports
from lab.studies.study import Cell, papers_difference

LEVEL = 0.95  # of the confidence interval
Values = dict[tuple[int, str], float]  # by step and measure
_NO_MEASURE = ("count", "points", "step")
_STEP = re.compile(r" step (\d+)$")


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


class Found(NamedTuple):
  """The results of finished cells, and the cells that diverged or are missing."""

  values: dict[Cell, Values]
  diverged: dict[Cell, str]
  missing: list[Cell]


def read(asked: Asked) -> Found:
  """Reads the results of all finished cells; errors as for `cells.finished` and `cells.reports`."""
  results = Found({}, {}, [])
  for cell in asked.cells:
    done = finished(asked, cell)
    if done is None:
      results.missing.append(cell)
    elif "diverged" in done:
      results.diverged[cell] = done["diverged"]
    else:
      last = asked.steps(asked.study.arms[cell.arm])[-1]
      results.values[cell] = values_of(reports(asked, cell), asked.fine_tunings(last), last=last)
  return results


def values_of(found: Mapping[str, Sequence[Row]], fine_tunings: Mapping[str, int], *, last: int) -> Values:
  """Returns a cell's reports as {(step, measure): value}; `fine_tunings` are {path of scores: step}.

  Values of an analysis without a step are assigned to step `last`.
  """
  values: Values = {}
  for name, rows in found.items():
    kind, _, file = name.partition("/")
    if kind == "probe":
      values |= dict(_probes(rows))
    elif kind == "analysis":
      values |= dict(_analysis(file.removesuffix(".json"), rows, last))
    else:
      step, tuning = fine_tunings[name.removesuffix("/results.json")], kind.replace("_", " ")
      scores = {row["metric"]: row["value"] for row in rows if "metric" in row}
      # Without such rows the scores are of retrieval: the model's row has all its figures.
      scores = scores or {key: value for key, value in rows[0].items() if isinstance(value, float)}
      values |= {(step, f"{tuning}, {metric}"): value for metric, value in scores.items()}
  return values


def _probes(rows: Sequence[Row]) -> Iterator[tuple[tuple[int, str], float]]:
  for row in rows:
    measure = ", ".join(row[part] for part in ("probe", "cases", "read"))
    for name, value in row.items():
      step = _STEP.search(name)
      if step or name == "untrained":
        yield (int(step[1]) if step else 0, measure), value


def _analysis(name: str, rows: Sequence[Row], last: int) -> Iterator[tuple[tuple[int, str], float]]:
  for row in rows:
    if "token" in row:  # an example, which differs between runs
      continue
    kind = ", ".join(text for key, text in row.items() if isinstance(text, str) and key != "checkpoint")
    for key, value in row.items():
      if isinstance(value, int | float) and key not in _NO_MEASURE:
        yield (row.get("step", last), f"{name}: {kind}, {key}" if kind else f"{name}: {key}"), float(value)


def report(asked: Asked, found: Found) -> Report:
  """Makes the table of a study: a row for each measure, arm and step, once per arm or step compared."""
  study = asked.study
  measures = dict.fromkeys(study.primary)
  measures |= dict.fromkeys(name for values in found.values.values() for _, name in values)
  rows = []
  for name in measures:
    rows += [row for arm in study.arms for row in _rows(asked, found.values, name, arm)]
    rows += [row for contrast in study.contrasts for row in _contrast(asked, found.values, name, contrast)]
  columns = [text_column(name, name) for name in ("measure", "row", "step")]
  columns += [
    Column("mean", lambda row: f"{row['mean']:.4f}"),
    Column("seeds", lambda row: str(row["seeds"])),
  ]
  columns += [text_column("against", "against"), Column("difference", _difference)]
  if any(arm.paper for arm in study.arms.values()):
    columns += [text_column("paper", "paper"), text_column("paper's difference", "paper's difference")]
  notes = [
    f"Means over seeds of pretraining. Differences are taken seed by seed, with Student's {LEVEL:.0%} "
    "interval over them; one seed has none. (a/n): a of n seeds are above 0. Accuracies and correlations are "
    "fractions; step 0 is the encoder before its first step."
  ]
  if study.primary:
    notes.append(f"Named before the runs: {'; '.join(study.primary)}. Other figures prove nothing.")
  if any(arm.paper for arm in study.arms.values()):
    notes.append(
      "The papers' figures are fine-tuned scores of their sizes: signs may be compared, not sizes."
    )
  for cell, line in found.diverged.items():
    notes.append(f"{cell.arm}, seed {cell.seed}, diverged and is in no mean: {line}")
  if found.missing:
    seeds = {name: [cell.seed for cell in found.missing if cell.arm == name] for name in study.arms}
    of_arm = "; ".join(f"{name} seeds {', '.join(map(str, left))}" for name, left in seeds.items() if left)
    notes.append(f"Open, {len(found.missing)} of {len(asked.cells)} cells: {of_arm}.")
  return Report("ablations", study.title, columns, rows, notes)


def _rows(asked: Asked, values: Mapping[Cell, Values], measure: str, name: str) -> list[dict[str, Any]]:
  arm = asked.study.arms[name]

  def at(name: str, step: int) -> dict[int, float]:
    keys = {cell.seed: (step, measure) for cell in values if cell.arm == name}
    return {
      seed: values[Cell(name, seed)][key] for seed, key in keys.items() if key in values[Cell(name, seed)]
    }

  def of_point(base: str, step: int) -> dict[int, float]:
    """Returns the values of another arm at the same point of its own steps."""
    return at(base, asked.steps(asked.study.arms[base])[steps.index(step)])

  steps = asked.steps(arm)
  rows = []
  for step in [*([0] if asked.study.has_start else []), *steps]:
    of_seed = at(name, step)
    if not of_seed:
      continue
    before = [(f"step {first:,}", at(name, first)) for first in (0, steps[0]) if first < step]
    others = [(base, of_point(base, step)) for base in (arm.base, *arm.against) if base and step]
    bases = others + (before if asked.study.has_start else [])
    row = {"measure": measure, "row": name, "step": step, "mean": sum(of_seed.values()) / len(of_seed)}
    row |= {"seeds": len(of_seed), "of seed": of_seed, "paper": arm.paper}
    row["paper's difference"] = papers_difference(arm.paper, arm.paper_base)
    compared = [(base, paired(of_seed, of_base)) for base, of_base in bases]
    for base, difference in compared or [("", None)]:
      numbers = {} if difference is None else {"difference": difference._asdict()}
      rows.append(row | {"against": base} | numbers)
  return rows


def _contrast(asked: Asked, values: Mapping[Cell, Values], measure: str, name: str) -> list[dict[str, Any]]:
  study = asked.study
  at = {arm: (asked.steps(study.arms[arm])[-1], measure) for arm in study.contrasts[name]}
  of_seed = {
    seed: sum(weight * values[Cell(arm, seed)][at[arm]] for arm, weight in study.contrasts[name].items())
    for seed in asked.seeds
    if all(key in values.get(Cell(arm, seed), {}) for arm, key in at.items())
  }
  difference = paired(of_seed, dict.fromkeys(of_seed, 0.0))
  if difference is None:
    return []
  row = {"measure": measure, "row": name, "step": "end", "against": "", "paper": "", "paper's difference": ""}
  found = {"mean": difference.mean, "seeds": len(of_seed), "of seed": of_seed}
  return [row | found | {"difference": difference._asdict()}]


def _difference(row: Row) -> str:
  difference = row.get("difference")
  if difference is None:
    return "-"
  interval = "" if difference["low"] is None else f" [{difference['low']:+.4f}, {difference['high']:+.4f}]"
  return f"{difference['mean']:+.4f}{interval} ({difference['above']}/{difference['seeds']})"
