"""Reads the files of a workdir: config, metrics, events, tables of other commands. Nothing is computed."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data import files
from data.errors import DataError, UserError
from data.tables import Cells
from pretrain import watching
from pretrain.checkpoints import checkpoint, resume, workdir
from pretrain.logs import metrics, trackers
from pretrain.settings import mixture
from pretrain.settings.run import batch_sizes

_NO_TABLES = (checkpoint.DIRECTORY, "tensorboard", "vocabulary")  # folders of a workdir without tables
MOST_BYTES = 200_000  # of a Markdown file or picture; none that this program writes is nearly as large
_MOST_ROWS = 200  # of a table on a page


class WrittenTable(NamedTuple):
  """The title, tables and notes of a Markdown file that another command wrote, and the plots beside it."""

  path: pathlib.Path
  title: str
  tables: Sequence[Cells]
  notes: Sequence[str]


class Event(NamedTuple):
  """An event of a run for the page, such as a loss spike or a rollback: step and description."""

  step: int | None  # updates done; None: not at a step
  what: str


@dataclasses.dataclass(frozen=True)
class ShownRun:
  """The files of one workdir as read for the page; empty values for files that do not exist yet."""

  name: str  # unique on the page
  path: pathlib.Path
  fields: Mapping[str, Any]  # {'train.batch_size': 32, ...}
  lines: Sequence[Mapping[str, Any]]  # lines of its metrics file
  meta: Mapping[str, Any]  # meta of its newest checkpoint, {} without one
  steps: Sequence[int]  # steps of its checkpoints
  events: Sequence[Event]
  tables: Sequence[WrittenTable]

  @property
  def recipe(self) -> str:
    """Name of the recipe; '' if the config is missing."""
    return str(self.fields.get("recipe", ""))

  @property
  def step(self) -> int:
    """The last step that is known to be done."""
    return max([line["step"] for line in self.lines] + [*self.steps], default=0)

  def tokens(self, step: int) -> int:
    """Returns the tokens of the first `step` batches, padding counted; 0 if the config is missing."""
    if not {"train.batch_size", "data.length"} <= self.fields.keys():
      return 0
    train = {name.removeprefix("train."): value for name, value in self.fields.items()}
    return batch_sizes(train).rows_before(step) * self.fields["data.length"]

  @property
  def trackers(self) -> dict[str, str]:
    """{tracker: address of the run's page there, or the run's id}."""
    found = trackers.read(self.path)
    return {name: str(entry.get("address") or entry.get("id", "")) for name, entry in found.items()}


def read(directories: Sequence[str]) -> list[ShownRun]:
  """Reads the runs of workdirs, in the same order.

  Raises:
    DataError: a path is not a directory, or has no run.
  """
  paths = [pathlib.Path(directory) for directory in directories]
  return [_read(path, name) for path, name in zip(paths, files.short_names(paths))]


def _read(path: pathlib.Path, name: str) -> ShownRun:
  if not path.is_dir():
    raise DataError(f"{path} is not a directory; expected the workdir of a run")
  lines = metrics.read(path)
  steps = checkpoint.saved_steps(path.absolute() / checkpoint.DIRECTORY)
  config = files.read_json(path / workdir.CONFIG)
  if not (lines or steps or config):
    raise DataError(
      f"{path} has no run: no {workdir.CONFIG}, no {metrics.FILE_NAME} and no checkpoint; "
      "expected the --workdir of a run"
    )
  meta: Mapping[str, Any] = {}
  events = []
  if steps:
    try:
      meta = checkpoint.read_meta(checkpoint.step_path(path, steps[-1]))
    except UserError as error:  # the rest of the page needs no meta
      events.append(Event(steps[-1], str(error)))
  fields = resume.flatten(config or meta.get("config", {}))
  events += sorted(_events(path, lines, meta), key=lambda event: event.step or 0)
  return ShownRun(name, path, fields, lines, meta, steps, events, find_tables(path))


def _events(
  path: pathlib.Path, lines: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]
) -> Iterator[Event]:
  for line in lines:
    if line.get("train/loss_spikes"):
      yield Event(line["step"], "the loss jumped in the steps before (train.spike_zscore)")
  for skip in meta.get("spikes", {}).get("skips", []):
    at, batches, spike, loss, zscore = skip
    yield Event(
      at,
      f"training went back to this step from a loss spike at step {spike:,} (loss {loss:.4g}, {zscore:.1f} "
      f"standard deviations); skipped batches: {batches:,}",
    )
  skipped = 0.0
  for line in lines:
    now = line.get("train/skipped_updates") or skipped
    if now > skipped:
      yield Event(line["step"], f"skipped updates that were not finite: {now - skipped:,.0f}")
    skipped = now
  diverged = files.read_json(path / watching.FILE_NAME)
  if isinstance(diverged.get("step"), int):
    yield Event(
      diverged["step"], f"the run diverged and stopped; loss terms and norms are in {watching.FILE_NAME}"
    )


def environment(run: ShownRun) -> dict[str, str]:
  """Returns {name: value} about a run's machine, data and packages, from its newest checkpoint."""
  meta = run.meta
  records = meta.get("records", {})
  sources = records.get("sources", [])
  mixed = {
    f"text {one['name']}": f"{one['rate']:.2%} of the rows, from {one['source']}; records {one['digest']}"
    for one in sources
  }
  facts = {
    "devices": meta.get("devices"),
    "commit of the program": meta.get("commit"),
    "run": meta.get("run_id"),
    "text": records.get("source"),
    **mixed,
    "rates of the rows": mixture.shown(meta.get("mixture", [])),
    "training tokens prepared": f"{records['tokens']:,}" if "tokens" in records else None,
    "records": meta.get("records_digest"),
    "vocabulary": meta.get("vocabulary_digest"),
    **dict(meta.get("packages", {})),
    "started from": ", ".join(f"{name} {value}" for name, value in (meta.get("started_from") or {}).items()),
    "checkpoints": ", ".join(f"{step:,}" for step in run.steps),
    "workdir": run.path,
  }
  return {name: str(value) for name, value in facts.items() if value}


def find_tables(directory: pathlib.Path) -> list[WrittenTable]:
  """Returns the tables of Markdown files in a folder and three levels below, by path.

  Such a file has a title and a table as `data.tables` writes them, and a JSON file of the same name.
  """
  found = []
  for depth in range(4):
    for path in sorted(directory.glob("*/" * depth + "*.md")):
      folders = path.relative_to(directory).parts[:-1]
      is_skipped = any(name in _NO_TABLES or name.startswith(".") for name in folders)
      if not is_skipped and path.with_suffix(".json").is_file() and (table := _read_table(path)):
        found.append(table)
  return found


def _read_table(path: pathlib.Path) -> WrittenTable | None:
  """Reads a Markdown file; None if it has no title or no table, or cannot be read."""
  try:
    too_large = path.stat().st_size > MOST_BYTES
    lines = [] if too_large else path.read_text(encoding="utf-8", errors="replace").splitlines()
  except OSError:
    return None
  tables: list[list[list[str]]] = []
  notes, is_inside = [], False
  for line in lines[1:]:
    is_row = line.startswith("| ") and line.endswith(" |")
    if is_row and not is_inside:
      tables.append([])
    if is_row:
      tables[-1].append(line[2:-2].split(" | "))
    elif line:
      notes.append(line.replace("\\*", "*"))
    is_inside = is_row
  cells = [
    Cells(rows[0], rows[2 : _MOST_ROWS + 2], [at for at, rule in enumerate(rows[1]) if rule.endswith(":")])
    for rows in tables
    if len(rows) > 2
  ]
  return WrittenTable(path, lines[0][2:], cells, notes) if cells and lines[0].startswith("# ") else None
