"""The training loop: resume, next batch, step, listeners, save, stop; and its start from a config."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from data.command import STOPPED
from pretrain.checkpoints import warm_start
from pretrain.checkpoints import workdir as workdir_files
from pretrain.listener import Listener
from pretrain.mesh import devices, sharding
from pretrain.reading.batches import Batches, known_skips
from pretrain.run import make_run
from pretrain.settings import PRETRAINING
from pretrain.start import beginning, listeners
from pretrain.step import Metrics, TrainState
from pretrain.stop import StopRequest
from pretrain.watching.spikes import RollBack

logger = logging.getLogger(__name__)


def train(
  config: ConfigDict,
  workdir: str,
  *,
  download: bool = False,
  settle: Callable[[bool], None] = lambda is_asked: None,
) -> int:
  """Trains, or resumes the run in `workdir`; returns 0 at the end, or 75 after a requested stop.

  `config` is as a config file returns it; `workdir` may be an address at gs://.
  `download` allows downloading text; `settle` is as in `StopRequest`. ConfigError: the config has problems.
  In a notebook `logging.basicConfig(level="INFO", force=True)` shows its lines.
  """
  PRETRAINING.check(config, num_devices=jax.device_count())
  mesh = sharding.make_mesh(sharding.MeshSettings(**config.mesh.to_dict()))  # before text is prepared
  with contextlib.ExitStack() as opened:
    place = opened.enter_context(workdir_files.opened(workdir))
    opened.enter_context(devices.enough_memory(config.train.batch_size, config.train.microbatches))
    origins = warm_start.origins(config.to_dict())
    config, records = beginning.open_records(config, origins, place, download)
    opened.enter_context(contextlib.closing(records))
    opened.enter_context(workdir_files.owned(place.folder))
    run = make_run(config, records.tokens_for(config.corruption), mesh=mesh)
    start = beginning.start(run, records, origins, place)
    with StopRequest(settle) as stop:
      if start.step >= config.train.total_steps:
        stop.finish()
        logger.info(f"{workdir} is finished: step {start.step:,} of {config.train.total_steps:,}")
        return 0
      with beginning.checkpoints(run, place, records) as checkpoints, jax.set_mesh(run.mesh):
        while True:
          state, saved = start.state(run, checkpoints)
          skips = (*known_skips(saved), *start.skips)
          batches = Batches(records.train, run, first=start.step, skips=skips)
          parts = listeners.Parts(run, records, checkpoints, batches, place, start, saved, skips, stop)
          try:
            return loop(parts, state, listeners.make(parts))
          except RollBack as spike:
            start = start.rolled_back(spike.skip)


def loop(parts: listeners.Parts, state: TrainState, table: list[Listener]) -> int:
  """Trains until the end or a stop request; returns the exit code."""
  run, stop, checkpoints, batches = parts.run, parts.stop, parts.checkpoints, parts.batches
  first, total = parts.start.step, run.config.train.total_steps
  done, pending = first, None
  train_step = run.compile_train_step()
  logger.info("Compiling, unless this machine has done it before")
  with contextlib.ExitStack() as ending:
    for listener in table:
      ending.callback(listener.end)
    ending.callback(_stop_reading, parts)
    for listener in table:
      if listener.every:
        listener.after(first, state)
    is_stopping = stop.is_agreed
    while done < total and not is_stopping:
      # A feed may read for minutes before its first batch.
      if done == first and not batches.arrives(done, lambda: stop.is_agreed):
        break
      state, metrics = train_step(state, batches.at(done))
      if pending is not None:  # step n runs while the host reads the metrics of step n - 1
        _tell(table, done, pending, state)
      pending, done = metrics, done + 1
      due = [listener for listener in table if listener.acts(done, total)]
      is_last = done == total
      if stop.reached() or is_last or due or checkpoints.is_due(done):
        _tell(table, done, pending, state)
        pending = None
      for listener in due:
        listener.after(done, state)
      # A request after the metrics were read stops after the next step, so that its metrics are read too.
      is_stopping = stop.is_agreed and pending is None
      if is_stopping or is_last or checkpoints.is_due(done):
        _save(parts, table, done, state, force=is_stopping or is_last)
    started = time.perf_counter()
    checkpoints.wait()
    waited = time.perf_counter() - started
  return _end(parts, done, waited)


def _tell(table: list[Listener], step: int, metrics: Metrics, state: TrainState) -> None:
  """Reads the metrics of an update and passes them to all listeners."""
  fetched = jax.device_get(metrics)
  figures = {name: (float(total), float(weight)) for name, (total, weight) in fetched.items()}
  for listener in table:
    listener.seen(step, figures, state)


def _stop_reading(parts: listeners.Parts) -> None:
  if not isinstance(sys.exception(), RollBack):  # after a roll-back the next pass continues reading
    parts.records.close()  # so that `batches` does not wait for a feed
  parts.batches.close()


def _save(
  parts: listeners.Parts, table: list[Listener], done: int, state: TrainState, *, force: bool
) -> None:
  devices = f"{parts.run.mesh.devices.size} x {jax.devices()[0].device_kind}"
  meta = {"config": parts.run.config.to_dict(), "devices": devices}
  for listener in table:
    meta |= listener.saving(done)
  if force or parts.checkpoints.is_due(done):
    parts.place.send()
  parts.checkpoints.save(done, state._asdict(), meta | parts.start.facts, force=force)


def _end(parts: listeners.Parts, done: int, waited: float) -> int:
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
