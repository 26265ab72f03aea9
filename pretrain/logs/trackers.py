"""Metrics sent to trackers of experiments beside the workdir's own files: Weights & Biases, MLflow, Trackio.

Each is a package that is installed for it (requirements-trackers.txt) and imported when a run names it in
`train.trackers`. Where it sends and as whom is its own matter: WANDB_PROJECT, WANDB_MODE, TRACKIO_SPACE_ID,
MLFLOW_TRACKING_URI and the like. A tracker never stops a run: one that fails is left out from then on.
"""

import dataclasses
import importlib
import importlib.util
import itertools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax

from data import errors, files
from data.errors import ConfigError
from pretrain.settings.trackers import PACKAGES, names

FILE_NAME = (
  "trackers.json"  # {tracker: {'run': id of ours, 'id': that of the tracker, 'address': of its page}}
)
PROJECT = "text-encoder-pretraining"
_PARAMS_AT_ONCE = 100  # MLflow's limit
_LONGEST_PARAM = 500  # characters of a value; servers differ, none takes fewer


@dataclasses.dataclass(frozen=True)
class Tracked:
  """The run that is tracked."""

  name: str  # for people
  run_id: str  # the same over all starts of the run
  workdir: Path
  fields: Mapping[str, Any]  # {'train.batch_size': 32, ...}
  known_id: str  # what the tracker called the run at an earlier start; '': not known


class Tracker(Protocol):
  """Where a run's metrics go besides its own files."""

  id: str  # by which a later start finds the run again
  address: str  # of the run's page; '' without one

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Sends finite numbers after `step` updates; steps may come again after a restart."""
    ...

  def close(self) -> None:
    """Sends what is left."""
    ...


class WandB:
  """Weights & Biases. Curves are drawn over 'step': its own counter takes no step that is over."""

  def __init__(self, tracked: Tracked, *, mode: str | None = None) -> None:
    """Begins the run, or goes on with that of an earlier start; `mode` None: that of WANDB_MODE."""
    wandb = importlib.import_module("wandb")
    self._run = wandb.init(
      project=os.environ.get("WANDB_PROJECT", PROJECT),
      name=tracked.name,
      id=tracked.run_id or None,
      resume="allow",
      dir=str(tracked.workdir),
      config=dict(tracked.fields),
      mode=mode,
    )
    self._run.define_metric("step")
    self._run.define_metric("*", step_metric="step")
    self.id, self.address = self._run.id, self._run.url or ""

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """As `Tracker.write`."""
    self._run.log({"step": step, **values})

  def close(self) -> None:
    """As `Tracker.close`."""
    self._run.finish()


class MLflow:
  """MLflow: a run of an experiment; the config are its parameters, which it takes once."""

  def __init__(self, tracked: Tracked) -> None:
    """Begins the run, or goes on with that of an earlier start."""
    self._mlflow = importlib.import_module("mlflow")
    self._mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    if tracked.known_id:
      run = self._mlflow.start_run(run_id=tracked.known_id)
    else:
      run = self._mlflow.start_run(run_name=tracked.name)
      shown = {name: str(value)[:_LONGEST_PARAM] for name, value in tracked.fields.items()}
      params = iter(shown.items())
      while some := dict(itertools.islice(params, _PARAMS_AT_ONCE)):
        self._mlflow.log_params(some)
    self.id = run.info.run_id
    server = self._mlflow.get_tracking_uri().rstrip("/")
    page = f"{server}/#/experiments/{run.info.experiment_id}/runs/{self.id}"
    self.address = page if server.startswith(("http://", "https://")) else ""

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """As `Tracker.write`."""
    self._mlflow.log_metrics(dict(values), step=step)

  def close(self) -> None:
    """As `Tracker.close`."""
    self._mlflow.end_run()


class Trackio:
  """Trackio: files on this machine, or a Space where TRACKIO_SPACE_ID names one. It has no page of a run."""

  def __init__(self, tracked: Tracked) -> None:
    """Begins the run, or goes on with that of an earlier start."""
    trackio = importlib.import_module("trackio")
    self.id, self.address = "-".join(filter(None, (tracked.name, tracked.run_id))), ""
    self._run = trackio.init(
      project=PROJECT, name=self.id, config=dict(tracked.fields), resume="allow", embed=False
    )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """As `Tracker.write`."""
    self._run.log(dict(values), step=step)

  def close(self) -> None:
    """As `Tracker.close`."""
    self._run.finish()


_MAKERS: Mapping[str, Callable[[Tracked], Tracker]] = {
  "wandb": WandB,
  "wandb_offline": lambda tracked: WandB(tracked, mode="offline"),
  "mlflow": MLflow,
  "trackio": Trackio,
}


def check(asked: str) -> None:
  """Raises a ConfigError where a tracker's package is not installed."""
  missing = [PACKAGES[name] for name in names(asked) if importlib.util.find_spec(PACKAGES[name]) is None]
  if missing:
    raise ConfigError(
      f"train.trackers={asked}: {missing[0]} is not installed; `pip install {' '.join(missing)}`, or leave "
      "it out: metrics.jsonl and TensorBoard's files are always written"
    )


class Trackers:
  """All trackers of a run, on the first process."""

  def __init__(
    self, asked: str, workdir: str, fields: Mapping[str, Any], run_id: str, log: Callable[[str], None]
  ) -> None:
    """Begins, or goes on with, the run `run_id` at each tracker, and keeps where that is in `FILE_NAME`."""
    self._log, self._open = log, dict[str, Tracker]()
    path = Path(workdir).absolute() / FILE_NAME
    known = read(workdir)
    for name in names(asked) if jax.process_index() == 0 else ():
      before = known.get(name, {})
      known_id = before.get("id", "") if before.get("run") == run_id else ""
      tracked = Tracked(path.parent.name, run_id, path.parent, fields, known_id)
      self._guarded(name, lambda name=name, tracked=tracked: self._begin(name, tracked))
    for name, tracker in self._open.items():
      known[name] = {"run": run_id, "id": tracker.id, "address": tracker.address}
      log(f"{name}: {tracker.address or tracker.id}")
    if self._open:
      with errors.writing(path):
        files.write_json(path, known)

  def _begin(self, name: str, tracked: Tracked) -> None:
    self._open[name] = _MAKERS[name](tracked)

  def _guarded(self, name: str, work: Callable[[], None]) -> None:
    """Does the work; a tracker that fails is left out, whatever it raises: hours of training go on."""
    try:
      work()
    except Exception as error:
      self._open.pop(name, None)
      self._log(f"{name} failed ({errors.reason(error)}) and gets no more metrics; the run goes on")

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Sends the metrics after `step` updates, those that are finite, to every tracker."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    for name, tracker in list(self._open.items()):
      self._guarded(name, lambda tracker=tracker: tracker.write(step, finite))

  def close(self) -> None:
    """Ends the runs at all trackers."""
    for name, tracker in list(self._open.items()):
      self._guarded(name, tracker.close)
    self._open = {}


def read(workdir: str | os.PathLike) -> dict[str, dict[str, str]]:
  """What `FILE_NAME` of a workdir says; {} without one."""
  content = files.read_json(Path(workdir) / FILE_NAME)
  return {name: entry for name, entry in content.items() if isinstance(entry, dict)}
