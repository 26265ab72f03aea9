"""A run from its config to its end: what it is made of, and the loop of steps, listeners and saves."""

import contextlib
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from data import progress
from data.command import STOPPED
from data.feed import FedRecords
from pretrain import start
from pretrain.checkpoints import resume, warm_start
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.workdir import Saves, Workdir
from pretrain.evaluate import Evaluation
from pretrain.listener import Listener
from pretrain.logs.intervals import Intervals, Probes, Progress
from pretrain.logs.metrics import Throughput
from pretrain.logs.trackers import Written
from pretrain.mesh import chips, devices, sharding
from pretrain.plan import flops
from pretrain.reading.batches import Batches, known_skips
from pretrain.reading.prepared import FeedMark, Prepared
from pretrain.run import Run, make_run
from pretrain.settings import PRETRAINING
from pretrain.settings.run import batch_sizes
from pretrain.start import Start
from pretrain.step import Metrics, TrainState
from pretrain.stop import StopRequest
from pretrain.watching import Finite, RollBack, Spikes

logger = logging.getLogger(__name__)


def train(
  config: ConfigDict,
  workdir: str,
  *,
  download: bool = False,
  settle: Callable[[bool], None] = lambda is_asked: None,
  more: Sequence[Listener] = (),
) -> int:
  """Trains, or resumes the run in `workdir`; returns 0 at the end, or 75 after a requested stop.

  `config` is as a config file returns it; `workdir` may be an address at gs://.
  `download` allows downloading text; `settle` is as in `StopRequest`. `more` listeners come after ours; where
  a loss spike rolls a run back, they see steps again, after `end`. ConfigError: the config has problems.
  In a notebook `logging.basicConfig(level="INFO", force=True)` shows its lines.
  """
  PRETRAINING.check(config, num_devices=jax.device_count())
  mesh = sharding.make_mesh(sharding.MeshSettings(**config.mesh.to_dict()))  # before text is prepared
  with contextlib.ExitStack() as opened:
    place = opened.enter_context(workdir_files.opened(workdir))
    opened.enter_context(devices.enough_memory(config.train.batch_size, config.train.microbatches))
    origins = warm_start.origins(config.to_dict())
    config, records = start.open_records(config, origins, place, download)
    opened.enter_context(contextlib.closing(records))
    opened.enter_context(workdir_files.owned(place.folder))
    run = make_run(config, records.tokens_for(config.corruption), mesh=mesh)
    begun = start.begin(run, records, origins, place)
    stop = opened.enter_context(StopRequest(settle))
    options, total, sizes = config.train, config.train.total_steps, batch_sizes(config.train)
    if begun.step >= total:
      stop.finish()
      logger.info(f"{workdir} is finished: step {begun.step:,} of {total:,}")
      return 0
    checkpoints = opened.enter_context(start.checkpoints(run, place, records))
    opened.enter_context(jax.set_mesh(run.mesh))

    def tokens_before(step: int) -> int:  # of the batches before a step, padding counted
      return sizes.rows_before(step) * config.data.length

    def is_stopping(step: int) -> bool:  # all processes call it at the same points
      return stop.reached() and step < total

    while True:  # a pass, which ends with the run, a stop or a loss spike
      first = begun.step
      state, saved = begun.state(run, checkpoints)
      skips = (*known_skips(saved), *begun.skips)
      batches = Batches(records.train, run, first=first, skips=skips)
      is_watched = progress.is_watched() and jax.process_index() == 0
      bar = progress.bar("step", is_shown=is_watched, total=total, initial=first)
      fields, run_id = resume.flatten(config.to_dict()), begun.facts.get("run_id", "")
      written = Written(fields, place.folder, first, run_id)
      peak = options.peak_flops or chips.peak_flops(jax.devices()[0].device_kind)
      speed = Throughput(
        tokens_before=tokens_before,
        flops_per_token=flops.training_flops_per_token(config.to_dict()),
        peak_flops=peak * run.mesh.devices.size if peak else None,
      )
      losses = saved.get("spikes", {}).get("losses", [])
      returns_to = checkpoints if options.spike_roll_back else None
      # A bit-equal resume depends on the order: each reads what earlier ones add to the figures of an update.
      listeners: list[Listener] = [
        written,
        Saves(checkpoints, place.folder),
        Progress(bar, tokens_before),
        Finite(run, batches, checkpoints, place.folder),
        Spikes(options.spike_zscore, options.spike_window, losses, skips, returns_to),
        Intervals(run, saved, written, speed, bar.disable),
      ]
      if records.heldout is not None:
        listeners.append(Evaluation(run, records.heldout, first, written, speed, is_stopping))
      if options.probe_every:
        probing = importlib.import_module(start.PROBING).Probing(config, records.vocabulary)
        listeners.append(Probes(probing, first, options.probe_every, written, speed, is_stopping))
      if isinstance(records.train, FedRecords):
        listeners.append(FeedMark(records.train, skips))
      try:
        return loop(Pass(run, records, checkpoints, batches, place, begun, stop), state, [*listeners, *more])
      except RollBack as spike:
        begun = begun.rolled_back(spike.skip)


class Pass(NamedTuple):
  """The parts of one pass of the loop."""

  run: Run
  records: Prepared
  checkpoints: Checkpoints
  batches: Batches
  place: Workdir
  start: Start
  stop: StopRequest


def loop(parts: Pass, state: TrainState, listeners: list[Listener]) -> int:
  """Trains until the end or a stop request; returns the exit code."""
  run, stop, checkpoints, batches = parts.run, parts.stop, parts.checkpoints, parts.batches
  first, total = parts.start.step, run.config.train.total_steps
  done, pending = first, None
  train_step = run.compile_train_step()
  logger.info("Compiling, unless this machine has done it before")
  with contextlib.ExitStack() as ending:
    for listener in listeners:
      ending.callback(listener.end)
    ending.callback(_stop_reading, parts)
    for listener in listeners:
      if listener.every:
        listener.after(first, state)
    is_stopping = stop.is_agreed
    while done < total and not is_stopping:
      # A feed may read for minutes before its first batch.
      if done == first and not batches.arrives(done, lambda: stop.is_agreed):
        break
      state, metrics = train_step(state, batches.at(done))
      if pending is not None:  # step n runs while the host reads the metrics of step n - 1
        _tell(listeners, done, pending, state)
      pending, done = metrics, done + 1
      due = [listener for listener in listeners if listener.acts(done, total)]
      is_last = done == total
      if stop.reached() or is_last or due or checkpoints.is_due(done):
        _tell(listeners, done, pending, state)
        pending = None
      for listener in due:
        listener.after(done, state)
      # A request after the metrics were read stops after the next step, so that its metrics are read too.
      is_stopping = stop.is_agreed and pending is None
      if is_stopping or is_last or checkpoints.is_due(done):
        _save(parts, listeners, done, state, force=is_stopping or is_last)
    started = time.perf_counter()
    checkpoints.wait()
    waited = time.perf_counter() - started
  return _end(parts, done, waited)


def _tell(listeners: list[Listener], step: int, metrics: Metrics, state: TrainState) -> None:
  """Reads the metrics of an update and passes them to all listeners."""
  fetched = jax.device_get(metrics)
  figures = {name: (float(total), float(weight)) for name, (total, weight) in fetched.items()}
  for listener in listeners:
    listener.seen(step, figures, state)


def _stop_reading(parts: Pass) -> None:
  if not isinstance(sys.exception(), RollBack):  # after a roll-back the next pass continues reading
    parts.records.close()  # so that `batches` does not wait for a feed
  parts.batches.close()


def _save(parts: Pass, listeners: list[Listener], done: int, state: TrainState, *, force: bool) -> None:
  devices = f"{parts.run.mesh.devices.size} x {jax.devices()[0].device_kind}"
  meta = {"config": parts.run.config.to_dict(), "devices": devices}
  for listener in listeners:
    meta |= listener.saving(done)
  if force or parts.checkpoints.is_due(done):
    parts.place.send()
  parts.checkpoints.save(done, state._asdict(), meta | parts.start.facts, force=force)


def _end(parts: Pass, done: int, waited: float) -> int:
  is_finished = done == parts.run.config.train.total_steps
  if is_finished:
    parts.stop.finish()
  if done == 0:
    logger.info("Stopped as asked before the first step; the same command starts again")
  else:
    path = os.fspath(parts.checkpoints.directory / str(done))
    path = path if parts.place.is_far else os.path.relpath(path)
    what = "Finished" if is_finished else "Stopped as asked; the same command continues"
    logger.info(f"{what}: step {done:,}, checkpoint {path} (waited {waited:.1f} s for it)")
  return 0 if is_finished else STOPPED
