"""The sections of the page, in the order in which they are read."""

import base64
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from data.page import drawing
from data.page.drawing import Axis, Chart, shown
from data.page.markup import Markup, document, element, joined, link, table
from pretrain.logs import metrics
from pretrain.report import config_diff, runs, series, written_tables
from pretrain.report.runs import ShownRun
from pretrain.report.written_tables import WrittenTable

MOST_BYTES = 5_000_000  # of a page
_MOST_PICTURES = 12
_TABLE_BYTES = 1_000_000  # of the text of all tables
_NUMBER = re.compile(r"-|-?[\d.,]+(e[+-]\d+)?( ?[±%] ?[\d.]*)*")
_AXIS_NAMES = {"step": "steps", "token": "tokens", "hour": "time of training"}


def make(
  found: Sequence[ShownRun], examples: Mapping[str, Markup], more_tables: Sequence[WrittenTable]
) -> str:
  """The whole page of runs; `examples` are by the name of a run, `more_tables` of none of them."""
  axes = series.axes(found)
  charts, constant = series.charts(found)
  sections = [
    ("Curves", _curves(charts, constant, axes)),
    ("Config", _config(found)),
    ("Examples", [[_heading(found, name), shown] for name, shown in examples.items()]),
    ("Tables", _tables(found, more_tables)),
    ("Events", _events(found)),
    ("Environment", _environment(found)),
  ]
  written = [(title, content) for title, content in sections if joined([content])]
  links = [element("li", element("a", title, href=f"#{title.lower()}")) for title, _ in written]
  title = (
    found[0].name
    if len(found) == 1
    else " and ".join((f"{len(found)} runs: {found[0].name}", found[-1].name))
  )
  if len(found) == 1 and found[0].recipe:
    title = f"{found[0].recipe} in {title}"
  header = element(
    "header",
    element("h1", title),
    _summary(found),
    element("nav", element("ul", links), aria_label="sections"),
  )
  main = [
    element("section", element("h2", title, id=title.lower()), content, aria_labelledby=title.lower())
    for title, content in written
  ]
  return document(title, header, element("main", main))


def _heading(found: Sequence[ShownRun], name: str) -> Markup | None:
  return element("h3", name) if len(found) > 1 else None


def _summary(found: Sequence[ShownRun]) -> Markup:
  if len(found) == 1:
    return element("p", _sentences(found[0]), class_="lead")
  names = config_diff.between(found)
  what = f"They differ in {_list([*names])}." if names else "Their configs are the same."
  header = ("run", "recipe", "steps", "tokens", "time", "tokens/s", "held-out loss", "lowest")
  rows = [[run.name, run.recipe, *_facts(run)] for run in found]
  return joined(
    [
      element("p", f"{len(found)} runs beside each other. {what}", class_="lead"),
      table(header, rows, numbers=range(2, 8)),
    ]
  )


def _list(names: Sequence[str], *, most: int = 6) -> str:
  more = [f"{len(names) - most} more fields"] if len(names) > most else []
  return ", ".join([*names[:most], *more])


def _duration(hours: float) -> str:
  if hours < 1 / 60:
    return f"{3600 * hours:.1f} s"
  return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def _count(number: float) -> str:
  """'4.1 million'."""
  for size, name in ((1e9, "billion"), (1e6, "million")):
    if number >= size:
      return f"{number / size:,.1f} {name}"
  return f"{number:,.0f}"


def _heldout_losses(run: ShownRun) -> list[tuple[int, float]]:
  return [(line["step"], line["eval/loss"]) for line in run.lines if isinstance(line.get("eval/loss"), float)]


def _speed(run: ShownRun) -> float | None:
  """The median of the speeds that were logged, tokens per second."""
  speeds = sorted(line["perf/tokens_per_second"] for line in run.lines if line.get("perf/tokens_per_second"))
  return speeds[len(speeds) // 2] if speeds else None


def _facts(run: ShownRun) -> list[str]:
  """The cells of the table of runs."""
  _, hours = metrics.hours(run.lines)
  losses, speed = _heldout_losses(run), _speed(run)
  total = run.fields.get("train.total_steps")
  return [
    f"{run.step:,}" + (f" of {total:,}" if isinstance(total, int) else ""),
    _count(run.step * run.tokens_per_step) if run.tokens_per_step else "-",
    _duration(hours[-1]) if len(hours) > 1 else "-",
    f"{speed:,.0f}" if speed else "-",
    shown(losses[-1][1]) if losses else "-",
    shown(min(loss for _, loss in losses)) if losses else "-",
  ]


def _sentences(run: ShownRun) -> str:
  """One run in a paragraph, as far as it is known."""
  fields = run.fields
  on = [
    name.split(".")[1]
    for name, value in fields.items()
    if re.fullmatch(r"objectives\.\w+\.weight", name) and value
  ]
  parts = []
  if "model.num_layers" in fields:
    layers, *sizes = (fields.get(f"model.{name}", 0) for name in ("num_layers", "hidden_size", "vocab_size"))
    parts.append(
      f"An encoder of {layers} layer{'s' * (layers != 1)}, {sizes[0]} wide, over {sizes[1]:,} pieces"
      + (f", pretrained with {_list(on)}" if on else "")
      + f" on blocks of {fields.get('data.length')} tokens."
    )
  steps, tokens, time, speed, last, lowest = _facts(run)
  parts.append(
    f"{steps} steps are done"
    + (f": {tokens} tokens" if tokens != "-" else "")
    + (f" in {time} of training, {speed} tokens per second." if time != "-" else ".")
  )
  losses = _heldout_losses(run)
  if len(losses) > 1:
    parts.append(
      f"The held-out loss went from {shown(losses[0][1])} at step {losses[0][0]:,} to {last}, its lowest was "
      f"{lowest}."
    )
  elif not losses:
    parts.append("Nothing was measured on held-out text yet.")
  return " ".join(parts)


def _curves(
  charts: Mapping[str, Sequence[Chart]], constant: Mapping[str, float], axes: Sequence[Axis]
) -> list[Any]:
  if not charts:
    return []
  choices = [
    element(
      "label",
      element("input", type="radio", name="over", id=f"over-{axis.key}", checked=axis.key == "step"),
      " ",
      _AXIS_NAMES[axis.key],
    )
    for axis in axes
  ]
  switch = (
    element("fieldset", element("legend", "Drawn over"), choices, class_="switch") if len(axes) > 1 else None
  )
  note = element(
    "p",
    "Lines: means over the steps of a logging interval. Dashed, with points: measured on held-out text, "
    "dropout off, the same text every time. Beside each name stands the last value. Time is that of training "
    "steps: without compilation, evaluation and pauses.",
    class_="note",
  )
  parts: list[Any] = [switch, note]
  for title, of_section in charts.items():
    parts += [
      element("h3", title),
      element("div", [drawing.figure(chart, axes) for chart in of_section], class_="charts"),
    ]
  if constant:
    same = ", ".join(f"{name} {shown(value)}" for name, value in constant.items())
    parts.append(element("p", f"The same at every step: {same}.", class_="note"))
  return parts


def _value(value: Any) -> str:
  return "–" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _config(found: Sequence[ShownRun]) -> list[Any]:
  parts: list[Any] = []
  if len(found) > 1 and (rows := config_diff.between(found)):
    cells = [[element("code", name), *map(_value, values)] for name, values in rows.items()]
    parts += [
      element("h3", "Fields that differ between the runs"),
      table(["field", *(run.name for run in found)], cells),
    ]
  for run in found:
    default = config_diff.from_default(run)
    if default is None:
      continue
    source, changed = default
    parts.append(
      element("h3", f"{run.name}: " if len(found) > 1 else "", f"Fields that differ from {source}")
    )
    cells = [
      [element("code", name), _value(before), element("span", _value(now), class_="differs")]
      for name, (before, now) in changed.items()
    ]
    parts.append(table(["field", "default", "this run"], cells) if cells else element("p", "None."))
  if len(found) == 1 and found[0].fields:
    cells = [[element("code", name), _value(value)] for name, value in sorted(found[0].fields.items())]
    whole = element(
      "details", element("summary", f"All {len(cells)} fields"), table(["field", "value"], cells)
    )
    parts.append(whole)
  return parts


def _tables(found: Sequence[ShownRun], more: Sequence[WrittenTable]) -> list[Any]:
  parts, left = [], _TABLE_BYTES
  together = written_tables.merged([(run.name, report) for run in found for report in run.tables])
  if together is not None:
    # One column for what was asked, so that a narrow page has room for the numbers.
    asked = written_tables.ASKED
    header, *rows = [[", ".join(row[:asked]), *row[asked:]] for row in together]
    parts += [element("h3", "Probes of all runs"), table(header, rows, numbers=range(1, len(header)))]
  for run_name, report in [(run.name, report) for run in found for report in run.tables] + [
    ("", report) for report in more
  ]:
    left -= sum(len(cell) + 20 for rows in report.tables for row in rows for cell in row)
    prefix = f"{run_name}: " if run_name and len(found) > 1 else ""
    is_shown = together is not None and run_name and report.path.stem == written_tables.OF_PROBES
    own = [] if is_shown else [element("h3", prefix, report.title)]
    if left < 0:
      parts += [*own, element("p", f"Too large for this page; see {report.path}.", class_="note")]
      continue
    for header, *rows in report.tables:
      numbers = [
        at for at in range(len(header)) if all(_NUMBER.fullmatch(row[at]) for row in rows if at < len(row))
      ]
      own.append(table(header, rows, numbers=numbers))
    if report.notes:
      notes = [element("p", note, class_="note") for note in report.notes]
      own.append(element("details", element("summary", "About these numbers"), notes))
    own.append(element("p", "From ", element("code", report.path), class_="note"))
    parts += [element("details", element("summary", prefix, report.title), own)] if is_shown else own
  plots = written_tables.pictures([*(report for run in found for report in run.tables), *more])
  return [
    *parts,
    element("div", list(map(_picture, plots[:_MOST_PICTURES])), class_="pictures") if plots else None,
  ]


def _picture(path: pathlib.Path) -> Markup:
  """A plot in a file, as a picture: what is in it can load and run nothing."""
  content = base64.b64encode(path.read_bytes()).decode()
  picture = element("img", src=f"data:image/svg+xml;base64,{content}", alt=f"plot {path.stem}")
  return element("figure", picture, element("figcaption", element("code", path), class_="note"))


def _events(found: Sequence[ShownRun]) -> list[Any]:
  is_one = len(found) == 1
  rows = [
    [*([] if is_one else [run.name]), "" if event.step is None else f"{event.step:,}", event.what]
    for run in found
    for event in run.events
  ]
  header = ["step", "what"] if is_one else ["run", "step", "what"]
  return [table(header, rows, numbers=[0 if is_one else 1])] if rows else []


def _environment(found: Sequence[ShownRun]) -> list[Any]:
  parts: list[Any] = []
  for run in found:
    pairs = [[element("dt", name), element("dd", value)] for name, value in runs.environment(run).items()]
    pages = [
      [element("dt", name), element("dd", link(address, address))] for name, address in run.trackers.items()
    ]
    parts += [_heading(found, run.name), element("dl", pairs, pages)]
  return parts
