"""Reads the files of a workdir: config, metrics, events, reports. Nothing is computed."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data import files
from data.errors import DataError, UserError
from pretrain.checkpoints import checkpoint, resume, workdir
from pretrain.logs import metrics, trackers
from pretrain.report import written_tables
from pretrain.report.written_tables import WrittenTable
from pretrain.settings import mixture
from pretrain.settings.run import batch_sizes
from pretrain.watching import finite

_NO_REPORTS = (checkpoint.DIRECTORY, "tensorboard", "vocabulary")  # folders of a workdir without reports


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
  return ShownRun(name, path, fields, lines, meta, steps, events, written_tables.find(path, _NO_REPORTS))


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
  diverged = files.read_json(path / finite.FILE_NAME)
  if isinstance(diverged.get("step"), int):
    yield Event(
      diverged["step"], f"the run diverged and stopped; loss terms and norms are in {finite.FILE_NAME}"
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
