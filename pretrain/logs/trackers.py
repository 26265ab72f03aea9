"""Writes metrics to the workdir's own files, and to Weights & Biases; another tracker needs code like that.

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from data import errors, files
from data.errors import ConfigError
from pretrain import pod
from pretrain.listener import Listener
from pretrain.logs import metrics
from pretrain.logs.metrics import MetricWriter

logger = logging.getLogger(__name__)

FILE_NAME = "trackers.json"  # {tracker: {'run': our id, 'id': the tracker's id, 'address': its page}}
PROJECT = "text-encoder-pretraining"


def check(asked: str) -> None:
  """Raises ConfigError if the tracker in `asked` (`train.trackers`) is not installed."""
  if asked and importlib.util.find_spec(asked) is None:
    raise ConfigError(
      f"train.trackers={asked}: {asked} is not installed; TensorBoard's files do not need it\n"
      f"  pip install {asked}\n  --config.train.trackers="
    )


class Tracker:
  """Sends metrics to the tracker in `train.trackers`, if one is named; only the first process does so."""

  def __init__(self, asked: str, workdir: str, fields: Mapping[str, Any], run_id: str) -> None:
    """Begins or resumes the run `run_id` at the tracker, and records its id in `FILE_NAME`."""
    self._run: Any = None
    path = Path(workdir).absolute() / FILE_NAME
    if not asked or jax.process_index() > 0:
      return
    with self._guarded():
      self._run = run = importlib.import_module(asked).init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=path.parent.name,
        id=run_id or None,
        resume="allow",
        dir=str(path.parent),
        config=dict(fields),
      )
      # Curves are drawn over 'step', because the package's own counter rejects earlier steps.
      run.define_metric("step")
      run.define_metric("*", step_metric="step")
      logger.info(f"{asked}: {run.url or run.id}")
    if self._run:
      with errors.writing(path):
        files.write_json(path, {asked: {"run": run_id, "id": run.id, "address": run.url or ""}})

  @contextlib.contextmanager
  def _guarded(self) -> Iterator[None]:
    """Drops the tracker if it raises in the block, because hours of training must not fail with it."""
    try:
      yield
    except Exception as error:
      self._run = None
      logger.warning(f"wandb failed ({errors.reason(error)}) and gets no more metrics; the run continues")

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Sends the finite metrics after `step` updates; steps may repeat."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    if self._run:
      with self._guarded():
        self._run.log({"step": step, **finite})

  def close(self) -> None:
    """Ends the run at the tracker."""
    if self._run:
      with self._guarded():
        self._run.finish()
    self._run = None


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
    self._tracker = Tracker(fields["train.trackers"], workdir, fields, run_id)

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the metrics after `step` updates; StorageError if the disk is full, for example."""
    self._writer.write(step, values)
    self._tracker.write(step, values)

  def end(self) -> None:
    """Closes the files; see `Listener.end`."""
    self._writer.close()
    self._tracker.close()
