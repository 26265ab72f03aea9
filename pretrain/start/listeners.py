"""Makes the listeners of a training loop from one ordered table.

A bit-equal resume depends on the order: each listener reads what earlier ones add to the figures of an
update.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from data import progress
from data.feed import FedRecords
from pretrain.checkpoints import resume
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.workdir import Saves, Workdir
from pretrain.evaluate import Evaluation
from pretrain.listener import Listener
from pretrain.logs.intervals import Intervals, Probes, Progress
from pretrain.logs.metrics import Throughput
from pretrain.logs.written import Written
from pretrain.mesh import chips
from pretrain.plan import flops
from pretrain.reading.batches import Batches, Skip
from pretrain.reading.prepared import FeedMark, Prepared
from pretrain.run import Run
from pretrain.settings.run import batch_sizes
from pretrain.start.beginning import Start
from pretrain.start.preflight import PROBING
from pretrain.stop import StopRequest
from pretrain.watching.finite import Finite
from pretrain.watching.replicas import Replicas
from pretrain.watching.spikes import Spikes, SpikeWatch


@dataclasses.dataclass
class Parts:
  """The inputs of all listeners of one pass of the loop, and objects that several listeners share."""

  run: Run
  records: Prepared
  checkpoints: Checkpoints
  batches: Batches
  place: Workdir
  start: Start
  saved: Mapping[str, Any]  # metadata of the checkpoint from which the pass resumes; {}: a new run
  skips: tuple[Skip, ...]  # batches that the pass skips
  stop: StopRequest

  def __post_init__(self) -> None:
    config, first = self.run.config, self.start.step
    total = config.train.total_steps
    is_watched = progress.is_watched() and jax.process_index() == 0
    self.bar = progress.bar("step", is_shown=is_watched, total=total, initial=first)
    fields, run_id = resume.flatten(config.to_dict()), self.start.facts.get("run_id", "")
    self.written = Written(fields, self.place.folder, first, run_id)
    peak = config.train.peak_flops or chips.peak_flops(jax.devices()[0].device_kind)
    self.speed = Throughput(
      tokens_before=self.tokens_before,
      flops_per_token=flops.training_flops_per_token(config.to_dict()),
      peak_flops=peak * self.run.mesh.devices.size if peak else None,
    )

  def tokens_before(self, step: int) -> int:
    """Returns the tokens of the batches before a step, padding counted."""
    return batch_sizes(self.run.config.train).rows_before(step) * self.run.config.data.length

  def is_stopping(self, step: int) -> bool:
    """Returns whether a stop must end the work at a step; all processes call it at the same points."""
    return self.stop.reached() and step < self.run.config.train.total_steps


def _spikes(parts: Parts) -> Listener:
  settings, of_run = parts.run.config.train, parts.saved.get("spikes", {})
  spikes = Spikes(settings.spike_zscore, settings.spike_window, of_run.get("losses", []), parts.skips)
  return SpikeWatch(spikes, parts.checkpoints, is_rolling_back=settings.spike_roll_back)


def _evaluation(parts: Parts) -> Listener | None:
  if parts.records.heldout is None:
    return None
  return Evaluation(
    parts.run,
    parts.records.heldout,
    parts.start.step,
    parts.written,
    parts.speed,
    parts.is_stopping,
  )


def _probes(parts: Parts) -> Listener | None:
  config = parts.run.config
  every = config.train.probe_every
  if not every:
    return None
  probing = importlib.import_module(PROBING).Probing(config, parts.records.vocabulary)
  return Probes(probing, parts.start.step, every, parts.written, parts.speed, parts.is_stopping)


def _feed(parts: Parts) -> Listener | None:
  records = parts.records.train
  return FeedMark(records, parts.skips) if isinstance(records, FedRecords) else None


Row = Callable[[Parts], Listener | None]
LISTENERS: tuple[Row, ...] = (
  lambda parts: parts.written,
  lambda parts: Saves(parts.checkpoints, parts.place.folder),
  lambda parts: Progress(parts.bar, parts.tokens_before),
  lambda parts: Finite(parts.run, parts.batches, parts.checkpoints, parts.place.folder),
  _spikes,
  lambda parts: Intervals(parts.run, parts.saved, parts.written, parts.speed, parts.bar.disable),
  lambda parts: Replicas(parts.run),
  _evaluation,
  _probes,
  _feed,
)


def make(parts: Parts) -> list[Listener]:
  """Returns the listeners of one pass of the loop, in the order of `LISTENERS`."""
  return [listener for row in LISTENERS if (listener := row(parts)) is not None]
