"""Builds the page of runs: all contents of its template `report.html`, in reading order."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from data.page import template
from data.page.plot import shown
from pretrain.logs import metrics
from pretrain.report import config_diff, runs, series, written_tables
from pretrain.report.examples import SHADES, Examples
from pretrain.report.runs import ShownRun
from pretrain.report.written_tables import WrittenTable

MOST_BYTES = 5_000_000  # limit of a page
_MOST_PICTURES = 12


def make(
  found: Sequence[ShownRun],
  examples: Mapping[str, Examples | str],
  more_tables: Sequence[WrittenTable],
  over: series.Axis = "step",
) -> str:
  """Returns the whole page of runs as HTML.

  `examples` has for each run's name its examples, or the reason why there are none. `more_tables` do not
  belong to a run.

  Raises:
    ConfigError: a run lacks the data for the axis.
  """
  charts, constant = series.charts(found, over)
  configs = _configs(found)
  title = found[0].name if len(found) == 1 else f"{len(found)} runs: {found[0].name} and {found[-1].name}"
  if len(found) == 1 and found[0].recipe:
    title = f"{found[0].recipe} in {title}"
  reports = [(run.name, report) for run in found for report in run.tables]
  reports += [("", report) for report in more_tables]
  is_one = len(found) == 1
  events = [
    [*([] if is_one else [run.name]), "" if event.step is None else f"{event.step:,}", event.what]
    for run in found
    for event in run.events
  ]
  filled = {
    "Curves": charts or constant,
    "Config": configs,
    "Examples": examples,
    "Tables": reports,
    "Events": events,
    "Environment": True,
  }
  return template.render(
    pathlib.Path(__file__).with_name("report.html"),
    title=title,
    sections=[(name, name.lower()) for name, content in filled.items() if content],
    runs=found,
    facts=[[run.name, run.recipe, *_facts(run)] for run in found],
    charts=charts,
    constant={name: shown(value) for name, value in constant.items()},
    configs=configs,
    fields=[[name, _value(value)] for name, value in sorted(found[0].fields.items())],
    examples=examples,
    shades=SHADES,
    reports=reports,
    pictures=written_tables.pictures([report for _, report in reports])[:_MOST_PICTURES],
    events=events,
    environments=[(run.name, runs.environment(run), run.trackers) for run in found],
  )


def _duration(hours: float) -> str:
  if hours < 1 / 60:
    return f"{3600 * hours:.1f} s"
  return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def _count(number: float) -> str:
  for size, name in ((1e9, "billion"), (1e6, "million")):
    if number >= size:
      return f"{number / size:,.1f} {name}"
  return f"{number:,.0f}"


def _heldout_losses(run: ShownRun) -> list[tuple[int, float]]:
  return [(line["step"], line["eval/loss"]) for line in run.lines if isinstance(line.get("eval/loss"), float)]


def _speed(run: ShownRun) -> float | None:
  speeds = sorted(line["perf/tokens_per_second"] for line in run.lines if line.get("perf/tokens_per_second"))
  return speeds[len(speeds) // 2] if speeds else None


def _facts(run: ShownRun) -> list[str]:
  _, hours = metrics.hours(run.lines)
  losses, speed = _heldout_losses(run), _speed(run)
  total = run.fields.get("train.total_steps")
  return [
    f"{run.step:,}" + (f" of {total:,}" if isinstance(total, int) else ""),
    _count(run.tokens(run.step)) if run.tokens(1) else "-",
    _duration(hours[-1]) if len(hours) > 1 else "-",
    f"{speed:,.0f}" if speed else "-",
    shown(losses[-1][1]) if losses else "-",
    shown(min(loss for _, loss in losses)) if losses else "-",
  ]


def _value(value: Any) -> str:
  return "–" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _configs(found: Sequence[ShownRun]) -> list[tuple[str, list[str], list[list[str]]]]:
  tables = []
  if len(found) > 1:
    rows = [[name, *map(_value, values)] for name, values in config_diff.between(found).items()]
    header = ["field", *(run.name for run in found)]
    tables.append(("Fields that differ between the runs", header, rows))
  for run in found:
    if (default := config_diff.from_default(run)) is not None:
      source, changed = default
      prefix = f"{run.name}: " if len(found) > 1 else ""
      rows = [[name, *map(_value, values)] for name, values in changed.items()]
      title = f"{prefix}Fields that differ from {source}"
      tables.append((title, ["field", "default", "this run"], rows))
  return tables
