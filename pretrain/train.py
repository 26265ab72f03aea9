"""The loop: read, step, log, evaluate, save, stop; and the way into it from a config."""

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from data import progress
from data.command import STOPPED
from data.feed.client import FedRecords
from pretrain.checkpoints import resume
from pretrain.checkpoints import workdir as workdir_files
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.evaluate import evaluate, trivial_loss
from pretrain.logs import metrics
from pretrain.logs.metrics import SOURCE_LOSS, MetricWriter, Throughput, reduce_metrics
from pretrain.logs.trackers import Trackers
from pretrain.mesh import chips
from pretrain.plan import flops
from pretrain.pod.peers import ALONE, LOOKING, Alone
from pretrain.pod.stop import StopRequest
from pretrain.reading.batches import Batches
from pretrain.reading.ledger import Ledger
from pretrain.reading.prepared import Prepared
from pretrain.reading.skips import position
from pretrain.run import Run, make_run
from pretrain.start import beginning, preflight
from pretrain.start.beginning import Log, Start
from pretrain.step import Metrics, TrainState
from pretrain.watching.spikes import RollBack, Spikes
from pretrain.watching.watch import Watch


def train(
  config: ConfigDict,
  workdir: str,
  *,
  download: bool = False,
  ledger: bool = False,
  new_phase: bool = False,
  peers: Alone = ALONE,
  settle: Callable[[bool], None] = lambda is_asked: None,
  log: Log = print,
) -> int:
  """Trains, or continues the run in `workdir`, to its end: 0, or 75 if stopped on request, all saved.

  `download` allows fetching text; `ledger` notes every step's examples; see `phases`, `stop` for the rest.
  """
  config, records = beginning.open_records(config, workdir, download, peers)
  with contextlib.closing(records), workdir_files.owned(workdir):
    run = make_run(config, records.tokens)
    start = beginning.start(run, records, workdir, peers, log, new_phase=new_phase)
    with StopRequest(peers, settle) as stop:
      if start.step >= config.train.total_steps:
        stop.finish()
        log(f"{workdir} is finished: step {start.step:,} of {config.train.total_steps:,}")
        return 0
      with _checkpoints(config, workdir, records, peers, log) as checkpoints, jax.set_mesh(run.mesh):
        while True:
          try:
            return Training(run, records, checkpoints, workdir, start, stop, log, ledger, peers).loop()
          except RollBack as spike:
            start = start.rolled_back(spike.skip)


def _checkpoints(
  config: ConfigDict, workdir: str, records: Prepared, peers: Alone, log: Log
) -> contextlib.closing[Checkpoints]:
  """Writes the files that a workdir begins with, then opens its checkpoints."""
  described = records.train.vocabulary
  begin = functools.partial(workdir_files.begin, workdir, config, records.vocabulary, described)
  peers.first("the workdir's files", begin, seconds=LOOKING)
  checkpoints = Checkpoints(
    workdir,
    every=config.train.checkpoint_every,
    keep=config.train.checkpoints_to_keep,
    keep_steps=config.train.checkpoint_steps,
    log=log,
  )
  return contextlib.closing(checkpoints)


@dataclasses.dataclass
class Training:
  """A run being trained."""

  run: Run
  records: Prepared
  checkpoints: Checkpoints
  workdir: str
  start: Start
  stop: StopRequest
  log: Log
  is_ledger_kept: bool = False
  peers: Alone = ALONE

  def __post_init__(self) -> None:
    config, first = self.run.config, self.start.step
    self.settings = config.train
    self.probing = None
    if self.settings.probe_every:
      self.probing = importlib.import_module(preflight.PROBING).Probing(config, self.records.vocabulary)
    self.state, self.sums, watched = self._first_state()
    zscore, window = self.settings.spike_zscore, self.settings.spike_window
    self.spikes = Spikes(zscore=zscore, window=window, saved=watched, skips=self.start.skips)
    was_written = functools.partial(metrics.has, self.workdir, first)
    # Process 0 rewrites the file.
    look = functools.partial(was_written, "eval/")
    self.is_evaluated = self.peers.first("what was evaluated", look, seconds=LOOKING)
    self.is_probed = was_written("probe/")
    self.train_step, self.eval_step = self.run.compile_train_step(), self.run.compile_eval_step()
    # Without a checkpoint nothing that an earlier start wrote is a part of this run, not even step 0.
    self.writer = MetricWriter(self.workdir, step=first or -1)
    run_id = self.start.facts.get("run_id", "")
    fields = resume.flatten(config.to_dict())
    self.trackers = Trackers(self.settings.trackers, self.workdir, fields, run_id, self.log)
    self.ledger = Ledger(self.workdir, step=first, is_kept=self.is_ledger_kept, log=self.log)
    skips = self.spikes.skips
    self.batches = Batches(self.records.train, self.run, first=first, ledger=self.ledger, skips=skips)
    is_watched = progress.is_watched() and self.peers.index == 0
    self.progress = progress.bar("step", is_shown=is_watched, total=self.settings.total_steps, initial=first)
    if is_watched:
      self.log = self.progress.write
    self.watch = Watch(self.run, self.checkpoints, self.batches, self.spikes, self.workdir, self.log)
    peak = self.settings.peak_flops or chips.peak_flops(jax.devices()[0].device_kind)
    self.throughput = Throughput(
      tokens_per_step=self.settings.batch_size * config.data.length,
      flops_per_token=flops.training_flops_per_token(config.to_dict()),
      peak_flops=peak * self.run.mesh.devices.size if peak else None,
    )

  @functools.cached_property
  def frequency_loss(self) -> float:
    """Nats per held-out token predicted by its frequency alone: what a model has to get below."""
    assert self.records.heldout is not None
    return trivial_loss(self.run, self.records.heldout)

  def _first_state(self) -> tuple[TrainState, dict, dict]:
    """The state to train on, sums of a logging interval that the save cut in two, and what was watched."""
    if self.start.loaded is None:
      restored, meta = self.checkpoints.restore(self.run.abstract_state._asdict(), self.start.step)
      self.log(f"Continuing at step {self.start.step:,} from {self.checkpoints.directory}")
      return TrainState(**restored), dict(meta["interval_sums"]), meta.get("spikes", {})
    return self.start.first_state(self.run), {}, {}

  def loop(self) -> int:
    """Steps until the end or a stop request; returns the exit code."""
    first, total, eval_every = self.start.step, self.settings.total_steps, self.settings.eval_every
    done, pending = first, None
    self.log("Compiling, unless this machine has done it before")
    try:
      # A stop request may have cut the evaluation of the step that was saved.
      if first == 0 or (first % eval_every == 0 and not self.is_evaluated):
        self.evaluate(first)
      if first == 0 or not self.is_probed:
        self.probe(first)
      is_stopping = self.stop.is_agreed
      while done < total and not is_stopping:
        self.watch.look_at_saves()
        # A feed may read for minutes before its first batch.
        if done == first and not self.batches.arrives(done, lambda: self.stop.is_agreed):
          break
        self.state, step_metrics = self.train_step(self.state, self.batches.at(done))
        if pending is not None:  # step n runs while the host reads the metrics of step n - 1
          self.add_metrics(done, pending)
        pending, done = step_metrics, done + 1
        if done == first + 1:
          jax.block_until_ready(step_metrics)
          self.throughput.restart(done)
        is_asked = self.stop.reached()
        if self._is_boundary(done) or is_asked:
          self.add_metrics(done, pending)
          pending = None
        self.watch.compare_replicas(done, self.state)
        if done % eval_every == 0 or done == total:
          self.evaluate(done)
        self.probe(done)
        # A request that came after the lines above: this step is not in the sums yet, the next one stops.
        is_stopping = self.stop.is_agreed and pending is None
        if is_stopping or done == total or self.checkpoints.is_due(done):
          self.save(done, force=is_stopping or done == total)
      started = time.perf_counter()
      self.checkpoints.wait()
      self.watch.look_at_saves()
      waited = time.perf_counter() - started
    finally:
      if not isinstance(sys.exception(), RollBack):  # after that the next loop reads on
        self.records.close()  # ends what `batches` may wait for
      self.batches.close()
      self.ledger.close()
      self.writer.close()
      self.trackers.close()
      self.progress.close()
    return self._end(done, waited)

  def _end(self, done: int, waited: float) -> int:
    """Logs how the loop ended; returns the exit code."""
    is_finished = done == self.settings.total_steps
    if is_finished:
      self.stop.finish()
    if done == 0:
      self.log("Stopped as asked before the first step; the same command starts again")
    else:
      path = os.path.relpath(os.path.join(self.checkpoints.directory, str(done)))
      what = "Finished" if is_finished else "Stopped as asked; the same command continues"
      self.log(f"{what}: step {done:,}, checkpoint {path} (waited {waited:.1f} s for it)")
    return 0 if is_finished else STOPPED

  def _is_boundary(self, done: int) -> bool:
    intervals = (self.settings.log_every, self.settings.eval_every, self.settings.probe_every)
    is_last = done == self.settings.total_steps
    return any(every and done % every == 0 for every in intervals) or is_last or self.checkpoints.is_due(done)

  def add_metrics(self, done: int, step_metrics: Metrics) -> None:
    """Adds a step's metrics to the interval's; logs at its end; stops a run that has diverged."""
    fetched = jax.device_get(step_metrics)
    for name, (total, weight) in fetched.items():
      before = self.sums.get(name, (0.0, 0.0))
      self.sums[name] = (before[0] + float(total), before[1] + float(weight))
    loss = float(fetched["loss"][0])
    self.progress.update(1)
    rate = self.progress.format_dict["rate"] or 0.0
    tokens = rate * self.settings.batch_size * self.run.config.data.length
    self.progress.set_postfix_str(f"loss {loss:.4g}, {tokens:,.0f} tokens/s", refresh=False)
    self.watch.see(done, loss, float(fetched["skipped_in_a_row"][0]), self.state, self.sums)
    if done % self.settings.log_every == 0 or done == self.settings.total_steps:
      means = {f"train/{name}": value for name, value in reduce_metrics(self.sums).items()}
      for last in ("skipped_updates", "skipped_in_a_row", "learning_rate"):
        means[f"train/{last}"] = float(fetched[last][0])
      speed = self.throughput.measure(done)
      self.sums = {}
      self._write(done, means | speed)
      if self.progress.disable:
        self.log(self._line(done, means | speed))

  def _line(self, done: int, values: dict[str, float]) -> str:
    """A log line of a step: loss, its terms and, from the second interval on, speed and time left."""
    fields = [f"step {done:,}/{self.settings.total_steps:,}", f"loss {values['train/loss']:.4f}"]
    fields += [f"{name} {values['train/' + name]:.4f}" for name in self.run.recipe.term_weights]
    speed = values.get("perf/tokens_per_second")
    if speed:
      seconds = (self.settings.total_steps - done) / values["perf/steps_per_second"]
      fields += [f"{speed:,.0f} tokens/s", f"{progress.duration(seconds)} left"]
    return "  ".join(fields)

  def _write(self, done: int, values: dict[str, float]) -> None:
    self.writer.write(done, values)
    self.trackers.write(done, values)

  def evaluate(self, done: int) -> None:
    """Writes held-out metrics; not if evaluation is off, or if a stop is asked for before the last step."""
    if self.records.heldout is None:
      return
    means = evaluate(
      self.run,
      self.eval_step,
      self.state.params,
      self.records.heldout,
      progress=done / self.settings.total_steps,
      is_stopping=lambda: self.stop.reached() and done < self.settings.total_steps,
    )
    if means is None:
      return
    self._write(done, {f"eval/{name}": value for name, value in means.items()})
    terms = [f"{name} {means[name]:.4f}" for name in self.run.recipe.term_weights if name in means]
    terms += [
      f"{name[len(SOURCE_LOSS) :]} {means[name]:.4f}" for name in means if name.startswith(SOURCE_LOSS)
    ]
    trivial = f"(token frequencies alone: {self.frequency_loss:.4f} per predicted token)"
    self.log("  ".join([f"held-out at step {done:,}", f"loss {means['loss']:.4f}", *terms, trivial]))
    self.throughput.restart(done)

  def probe(self, done: int) -> None:
    """Writes what the frozen encoder knows, if `train.probe_every` asks for it here and nobody for a stop."""
    is_last = done == self.settings.total_steps
    if self.probing is None or (done % self.settings.probe_every and not is_last):
      return
    figures = self.probing.measure(
      jax.device_get(self.state.params), is_stopping=lambda: self.stop.reached() and not is_last
    )
    if figures is None:
      return
    self._write(done, figures)
    self.log(f"probes at step {done:,}: {len(figures)} figures")
    self.throughput.restart(done)

  def save(self, done: int, *, force: bool) -> None:
    """Starts a save in the background."""
    sums = {name: list(pair) for name, pair in self.sums.items()}
    devices = f"{self.run.mesh.devices.size} x {jax.devices()[0].device_kind}"
    meta = {"config": self.run.config.to_dict(), "interval_sums": sums, "devices": devices}
    if self.settings.spike_zscore or self.spikes.skips:
      meta["spikes"] = self.spikes.to_save()
    if isinstance(self.records.train, FedRecords):
      meta["feed_read"] = self.records.train.mark(position(done, self.spikes.skips))
    self.checkpoints.save(done, self.state._asdict(), meta | self.start.facts, force=force)
