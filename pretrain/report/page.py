"""Builds the page of runs: the contents of its template `report.html`, and predictions on held-out text."""

import contextlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import configs
from configs import arguments, base
from data import page
from data.errors import ConfigError, DataError
from data.page import shown
from pretrain.checkpoints import resume
from pretrain.checkpoints.saved_model import OpenedRun, open_run
from pretrain.evaluate import Arrays, collect, describe_guesses, describe_replaced
from pretrain.logs import metrics
from pretrain.report import runs, series
from pretrain.report.runs import ShownRun, WrittenTable

MOST_TOKENS = 80  # shown of a block
SHADES = ("0%–10%", "10%–20%", "20%–40%", "40%–70%", "70%–100%")  # about one token in eight is replaced
_BOUNDS = (0.1, 0.2, 0.4, 0.7)


class Token(NamedTuple):
  """A token of a held-out block: its text, its original, and the encoder's probability."""

  text: str  # the encoder's input; in masked text its likeliest token
  original: str | None  # the token of the text, if it was replaced or masked
  belief: float | None  # probability of "replaced"; in masked text, of the original token
  begins_word: bool
  is_right: bool = False  # in masked text, whether the likeliest token is the original

  @property
  def shade(self) -> int:
    """Index in `SHADES` of the background shade that shows the token's probability."""
    return sum((self.belief or 0.0) >= bound for bound in _BOUNDS)


class Examples(NamedTuple):
  """A few held-out blocks with one checkpoint's prediction for each token, to show on the page."""

  kind: Literal["replaced", "masked"]
  step: int
  blocks: list[list[Token]]


def look(run: ShownRun, *, number: int) -> Examples:
  """Runs the newest checkpoint of a run on the first `number` held-out blocks.

  DataError: there is no checkpoint, its records are not on this machine, or it has no head on tokens.
  """
  opened = open_run(run.path, rows=number)
  names = opened.params.get("heads", {})
  rows = min(number, len(opened.heldout))
  if "rtd" in names:
    arrays = collect(opened.run, opened.params, opened.heldout, describe_replaced, rows=rows)
    blocks = [list(_replaced(arrays, row, opened)) for row in range(rows)]
    return Examples("replaced", opened.step, blocks)
  if "mlm" in names:
    arrays = collect(opened.run, opened.params, opened.heldout, describe_guesses, rows=rows)
    return Examples("masked", opened.step, [list(_guessed(arrays, row, opened)) for row in range(rows)])
  raise DataError(
    f"checkpoint {run.path}: no examples, because it has neither an RTD head nor a masked LM head"
  )


def _shown(ids: np.ndarray, opened: OpenedRun) -> Iterator[int]:
  """Yields the positions of a row that are shown, without [CLS] and padding."""
  hidden = (opened.encoder.vocabulary.special_ids.cls, opened.encoder.vocabulary.special_ids.pad)
  return (at for at in range(min(len(ids), MOST_TOKENS)) if ids[at] not in hidden)


def _replaced(arrays: Arrays, row: int, opened: OpenedRun) -> Iterator[Token]:
  ids, inputs = arrays["ids"][row], arrays["input_ids"][row]
  for at in _shown(ids, opened):
    text, begins = opened.encoder.vocabulary.letters(inputs[at])
    original = opened.encoder.vocabulary.letters(ids[at])[0] if ids[at] != inputs[at] else None
    yield Token(text, original, float(arrays["probability_replaced"][row, at]), begins)


def _guessed(arrays: Arrays, row: int, opened: OpenedRun) -> Iterator[Token]:
  ids = arrays["ids"][row]
  for at in _shown(ids, opened):
    original, begins = opened.encoder.vocabulary.letters(ids[at])
    if not arrays["selected"][row, at]:
      yield Token(original, None, None, begins)
      continue
    guess, _ = opened.encoder.vocabulary.letters(arrays["guesses"][row, at])
    is_right = bool(arrays["guesses"][row, at] == ids[at])  # pieces with equal letters may differ
    yield Token(guess, original, float(arrays["probability"][row, at]), begins, is_right)


MOST_BYTES = 5_000_000  # limit of a page
_MOST_PICTURES = 12
_PLACES = ("recipe", "data.directory")  # names and places, which do not change the training


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
  is_one = len(found) == 1
  title = found[0].name if is_one else f"{len(found)} runs: {found[0].name} and {found[-1].name}"
  if is_one and found[0].recipe not in ("", title):
    title = f"{found[0].recipe} in {title}"
  tables = [(run.name, table) for run in found for table in run.tables]
  tables += [("", table) for table in more_tables]
  folders = sorted({table.path.parent for _, table in tables if table.path.stem == "analyses"})
  plots = [path for folder in folders for path in sorted(folder.glob("*.svg"))]
  filled = {
    "Curves": charts or constant,
    "Config": _configs(found),
    "Examples": examples,
    "Tables": tables,
    "Events": [
      [*([] if is_one else [run.name]), "" if event.step is None else f"{event.step:,}", event.what]
      for run in found
      for event in run.events
    ],
    "Environment": [(run.name, runs.environment(run), run.trackers) for run in found],
  }
  return page.render(
    pathlib.Path(__file__).with_name("report.html"),
    title=title,
    sections=[(name, name.lower()) for name, content in filled.items() if content],
    runs=found,
    facts=[[run.name, run.recipe, *_facts(run)] for run in found],
    charts=charts,
    constant={name: shown(value) for name, value in constant.items()},
    configs=filled["Config"],
    fields=[[name, _value(value)] for name, value in sorted(found[0].fields.items())],
    examples=examples,
    shades=SHADES,
    tables=tables,
    pictures=[path for path in plots if path.stat().st_size <= runs.MOST_BYTES][:_MOST_PICTURES],
    events=filled["Events"],
    environments=filled["Environment"],
  )


def _facts(run: ShownRun) -> list[str]:
  """Returns a run's cells of the first table: steps, tokens, time, speed, and its held-out losses."""
  _, hours = metrics.hours(run.lines)
  losses = [line["eval/loss"] for line in run.lines if isinstance(line.get("eval/loss"), float)]
  speeds = sorted(line["perf/tokens_per_second"] for line in run.lines if line.get("perf/tokens_per_second"))
  total, tokens = run.fields.get("train.total_steps"), run.tokens(run.step)
  count = next(
    (f"{tokens / size:,.1f} {name}" for size, name in ((1e9, "billion"), (1e6, "million")) if tokens >= size),
    f"{tokens:,}",
  )
  taken = next(
    (f"{hours[-1] / size:,.1f} {name}" for size, name in ((1, "h"), (1 / 60, "min")) if hours[-1] >= size),
    f"{3600 * hours[-1]:.1f} s",
  )
  return [
    f"{run.step:,}" + (f" of {total:,}" if isinstance(total, int) else ""),
    count if run.tokens(1) else "-",
    taken if len(hours) > 1 else "-",
    f"{speeds[len(speeds) // 2]:,.0f}" if speeds else "-",
    shown(losses[-1]) if losses else "-",
    shown(min(losses)) if losses else "-",
  ]


def _value(value: Any) -> str:
  return "–" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def _configs(found: Sequence[ShownRun]) -> list[tuple[str, list[str], list[list[str]]]]:
  """Returns tables (title, header, rows) of fields that differ between runs, and from each run's recipe.

  A field that is newer than a run has its default value in the first table, and is not in the others.
  """
  made = []
  if len(found) > 1:
    names = sorted({name for run in found for name in run.fields})
    usual = resume.flatten(base.get_config().to_dict())
    rows = [[name, *(run.fields.get(name, usual.get(name)) for run in found)] for name in names]
    header = ["field", *(run.name for run in found)]
    differing = [row for row in rows if any(value != row[1] for value in row[1:])]
    made.append(("Fields that differ between the runs", header, differing))
  for run in found:
    if run.fields:
      source, usual = _defaults(run.recipe)
      rows = [
        [name, usual.get(name), value]
        for name, value in run.fields.items()
        if name not in _PLACES and usual.get(name) != value
      ]
      prefix = f"{run.name}: " if len(found) > 1 else ""
      made.append((f"{prefix}Fields that differ from {source}", ["field", "default", "this run"], rows))
  return [
    (title, header, [[name, *map(_value, values)] for name, *values in rows]) for title, header, rows in made
  ]


def _defaults(recipe: str) -> tuple[str, Mapping[str, Any]]:
  """Returns the name and the fields of a run's recipe, or of `configs/base.py` if it is none of ours."""
  folder, name, config = pathlib.Path(str(configs.__file__)).parent, "configs/base.py", base.get_config()
  stem, separator, argument = arguments.spelled(recipe).partition(":")
  # A workdir may come from elsewhere, so only this program's own recipes are imported.
  if re.fullmatch(r"[a-z]\w*", stem) and (folder / f"{stem}.py").is_file():
    with contextlib.suppress(ConfigError):
      config = arguments.recipe(f"{stem}{separator}{argument}")
      name = f"configs/{stem}.py{separator}{argument}"
  return name, resume.flatten(config.to_dict())
