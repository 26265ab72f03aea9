"""Writes metrics to the workdir's own files, and to Weights & Biases; another tracker would be in `_MAKERS`.

A tracker needs its package (requirements-trackers.txt), which is imported if `train.trackers` names it.
Servers and accounts are configured by the package's own variables: WANDB_PROJECT, WANDB_MODE and so on. A
tracker never stops a run: if it fails, it is not used any more.
"""

import contextlib
import importlib
import importlib.util
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from data import errors, files
from data.errors import ConfigError
from pretrain import pod
from pretrain.listener import Listener
from pretrain.logs import metrics
from pretrain.logs.metrics import MetricWriter
from pretrain.settings.run import tracker_names

logger = logging.getLogger(__name__)

FILE_NAME = "trackers.json"  # {tracker: {'run': our id, 'id': the tracker's id, 'address': its page}}
PROJECT = "text-encoder-pretraining"


class Tracked(NamedTuple):
  """The facts about a run that a tracker needs: names, ids, workdir and config fields."""

  name: str  # display name
  run_id: str  # the same in all starts of the run
  workdir: Path
  fields: Mapping[str, Any]  # {'train.batch_size': 32, ...}


class Tracker(NamedTuple):
  """A tracker's open run: its id and address, and functions that write metrics and close it."""

  id: str  # for resuming it at a later start
  address: str  # of the run's page; '' without one
  write: Callable[[int, dict[str, float]], Any]  # (updates done, finite numbers); steps may repeat
  close: Callable[[], Any]


def _wandb(tracked: Tracked) -> Tracker:
  wandb = importlib.import_module("wandb")
  run = wandb.init(
    project=os.environ.get("WANDB_PROJECT", PROJECT),
    name=tracked.name,
    id=tracked.run_id or None,
    resume="allow",
    dir=str(tracked.workdir),
    config=dict(tracked.fields),
  )
  # Curves are drawn over 'step', because the package's own counter rejects earlier steps.
  run.define_metric("step")
  run.define_metric("*", step_metric="step")
  return Tracker(run.id, run.url or "", lambda step, values: run.log({"step": step, **values}), run.finish)


_MAKERS: Mapping[str, Callable[[Tracked], Tracker]] = {"wandb": _wandb}


def check(asked: str) -> None:
  """Raises ConfigError if a tracker named in `asked` (`train.trackers`) is not installed."""
  missing = [name for name in tracker_names(asked) if importlib.util.find_spec(name) is None]
  if missing:
    raise ConfigError(
      f"train.trackers={asked}: {missing[0]} is not installed; metrics.jsonl and TensorBoard's files do not "
      f"need it\n  pip install {' '.join(missing)}\n  --config.train.trackers="
    )


class Trackers:
  """Sends a run's metrics to the trackers in `train.trackers`; only the first process does so."""

  def __init__(self, asked: str, workdir: str, fields: Mapping[str, Any], run_id: str) -> None:
    """Begins or resumes the run `run_id` at each tracker, and records its id in `FILE_NAME`."""
    self._open = dict[str, Tracker]()
    path = Path(workdir).absolute() / FILE_NAME
    known = read(workdir)
    for name in tracker_names(asked) if jax.process_index() == 0 else ():
      with self._guarded(name):
        begun = _MAKERS[name](Tracked(path.parent.name, run_id, path.parent, fields))
        self._open[name] = begun
        known[name] = {"run": run_id, "id": begun.id, "address": begun.address}
        logger.info(f"{name}: {begun.address or begun.id}")
    if self._open:
      with errors.writing(path):
        files.write_json(path, known)

  @contextlib.contextmanager
  def _guarded(self, name: str) -> Iterator[None]:
    """Drops a tracker that raises in the block, because hours of training must not fail with it."""
    try:
      yield
    except Exception as error:
      self._open.pop(name, None)
      logger.warning(f"{name} failed ({errors.reason(error)}) and gets no more metrics; the run continues")

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Sends the finite metrics after `step` updates to every tracker."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    for name, tracker in list(self._open.items()):
      with self._guarded(name):
        tracker.write(step, finite)

  def close(self) -> None:
    """Ends the runs at all trackers."""
    for name, tracker in list(self._open.items()):
      with self._guarded(name):
        tracker.close()
    self._open = {}


def read(workdir: str | os.PathLike) -> dict[str, dict[str, str]]:
  """Reads {tracker: id and address of its run} from a workdir's `FILE_NAME`; {} if it is missing."""
  content = files.read_json(Path(workdir) / FILE_NAME)
  return {name: entry for name, entry in content.items() if isinstance(entry, dict)}


class Written(Listener):
  """Writes the metrics of all listeners.

  Attributes:
    kinds: kinds of metrics ('train', 'eval', 'probe', 'perf') that an earlier start wrote at the first step.
  """

  def __init__(self, fields: Mapping[str, Any], workdir: str, step: int, run_id: str) -> None:
    """Opens the files of a run that continues from `step`, and removes later lines.

    `fields` of the config by dotted names are for the trackers.
    """
    # Read before process 0 rewrites the file.
    self.kinds = set(pod.first(lambda: sorted(metrics.kinds(workdir, step))))
    # Without a checkpoint no earlier line belongs to this run, not even step 0.
    self._writer = MetricWriter(workdir, step=step or -1)
    self._trackers = Trackers(fields["train.trackers"], workdir, fields, run_id)

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the metrics after `step` updates; StorageError if the disk is full, for example."""
    self._writer.write(step, values)
    self._trackers.write(step, values)

  def end(self) -> None:
    """Closes the files; see `Listener.end`."""
    self._writer.close()
    self._trackers.close()
