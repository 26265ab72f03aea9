"""The loop: build, resume, step, log, evaluate, save, stop."""

import concurrent.futures
import os
import signal
import time
from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from data import manifest
from data.errors import DivergedError
from data.records import PackedRecords
from pretrain import flops, resume, sharding, source
from pretrain.checkpoint import Checkpoints
from pretrain.evaluate import evaluate
from pretrain.metrics import MetricWriter, Throughput, reduce_metrics
from pretrain.run import Run, make_run
from pretrain.step import TrainState

STOPPED = 75  # exit code after a requested stop with everything saved: start the same command again
BATCHES_AHEAD = 2  # read while the device works


class StopRequest:
  """Turns the first SIGTERM or SIGINT into a stop at the next step boundary; a second one kills."""

  def __init__(self) -> None:
    self.is_set = False
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, self._note)

  def _note(self, number: int, _) -> None:
    self.is_set = True
    signal.signal(number, signal.SIG_DFL)


class Batches:
  """This process's rows of each global batch, read ahead by one thread; a function of the step."""

  def __init__(self, records: PackedRecords, run: Run, *, first: int) -> None:
    self._records, self._run = records, run
    self._rows = sharding.local_rows(run.mesh, run.config.train.batch_size)
    self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    self._ahead = {step: self._submit(step) for step in range(first, first + BATCHES_AHEAD)}

  def _submit(self, step: int) -> concurrent.futures.Future:
    size = self._run.config.train.batch_size
    return self._pool.submit(self._records.batch, step, size, start=self._rows.start, stop=self._rows.stop)

  def at(self, step: int) -> jax.Array:
    """[batch, length] int32 global array of one step."""
    self._ahead[step + BATCHES_AHEAD] = self._submit(step + BATCHES_AHEAD)
    local: np.ndarray = self._ahead.pop(step).result()
    return sharding.to_global(self._run.mesh, local)

  def close(self) -> None:
    """Stops reading."""
    self._pool.shutdown(cancel_futures=True)


def open_records(config: ConfigDict, directory: str) -> tuple[PackedRecords, PackedRecords]:
  """The training and held-out records of a prepared directory."""
  data = config.data
  return (
    PackedRecords(directory, split="train", length=data.length, seed=config.seed, fraction=data.fraction),
    PackedRecords(directory, split="heldout", length=data.length, seed=config.seed),
  )


def train(
  config: ConfigDict, workdir: str, *, download: bool = False, say: Callable[[str], None] = print
) -> int:
  """Trains, or continues the run in `workdir`, to `train.total_steps`.

  Args:
    config: validated config.
    workdir: checkpoints, logs and the resolved config go there.
    download: whether missing text may be downloaded.
    say: takes lines for the user.

  Returns:
    The exit code: 0 finished, 75 stopped on request with everything saved.

  Raises:
    UserError: see `data.errors`.
  """
  directory = source.ensure_records(config, download=download)
  records, heldout = open_records(config, directory)
  run = make_run(config, source.token_ids(directory))
  checkpoints = Checkpoints(
    workdir,
    every=config.train.checkpoint_every,
    keep=config.train.checkpoints_to_keep,
    keep_steps=config.train.checkpoint_steps,
  )
  digests = records_digests(directory)
  with jax.set_mesh(run.mesh):
    try:
      state, sums = _first_state(run, checkpoints, digests, say)
      if int(state.step) >= config.train.total_steps:
        say(f"{workdir} is finished: step {int(state.step):,} of {config.train.total_steps:,}")
        return 0
      loop = _Loop(run, records, heldout, checkpoints, digests, workdir, state, sums, say)
      return loop.run_to_end()
    finally:
      checkpoints.close()


def records_digests(directory: str) -> dict[str, str]:
  """sha256 of the vocabulary and of all shards: what a checkpoint remembers of its data."""
  content = manifest.read(directory)
  shards = [shard.sha256 for split in content.splits.values() for shard in split.shards]
  return {
    "vocabulary_digest": content.vocabulary.digest,
    "records_digest": manifest.digest_json(shards),
  }


def _first_state(
  run: Run, checkpoints: Checkpoints, digests: dict[str, str], say: Callable[[str], None]
) -> tuple[TrainState, dict]:
  """Resume, else warm start, else from scratch; and the sums of a logging interval the save cut in two."""
  latest = checkpoints.latest_step()
  if latest is not None:
    for line in resume.check_same_run(run.config, digests, checkpoints.restore_meta()):
      say(f"Config changed since step {latest:,}: {line}")
    restored, meta = checkpoints.restore(run.abstract_state._asdict())
    say(f"Continuing at step {latest:,} from {checkpoints.directory}")
    return TrainState(**restored), meta["interval_sums"]
  state = run.init_state()
  return state._replace(params=resume.warm_start(state.params, run.config)), {}


class _Loop:
  """One run's moving parts."""

  def __init__(self, run, records, heldout, checkpoints, digests, workdir, state, sums, say) -> None:
    self.run, self.heldout, self.checkpoints, self.digests = run, heldout, checkpoints, digests
    self.config, self.state, self.first = run.config.train, state, int(state.step)
    self.batches = Batches(records, run, first=self.first)
    self.train_step, self.eval_step = run.compile_train_step(), run.compile_eval_step()
    self.writer = MetricWriter(workdir, step=self.first, console=None)
    self.progress = tqdm(
      total=self.config.total_steps,
      initial=self.first,
      unit="step",
      disable=not source.is_terminal(),
      dynamic_ncols=True,
    )
    self.say = self.progress.write if source.is_terminal() else say
    devices = run.mesh.devices.size
    peak = self.config.peak_flops or flops.peak_flops(jax.devices()[0].device_kind)
    self.throughput = Throughput(
      tokens_per_step=self.config.batch_size * run.config.data.length,
      flops_per_token=flops.training_flops_per_token(run.config.to_dict()),
      peak_flops=peak * devices if peak else None,
    )
    self.sums: dict = dict(sums)

  def run_to_end(self) -> int:
    """Steps until the end or a stop request; returns the exit code."""
    stop, pending = StopRequest(), None
    if self.first == 0:
      self.evaluate(0)
    for at in range(self.first, self.config.total_steps):
      self.state, metrics = self.train_step(self.state, self.batches.at(at))
      if pending is not None:  # step n runs while the host reads step n - 1
        self.note(at, pending)
      pending, done = metrics, at + 1
      if at == self.first:
        jax.block_until_ready(metrics)
        self.throughput.restart(done)
      if self._is_boundary(done) or stop.is_set:
        self.note(done, pending)
        pending = None
      if done % self.config.eval_every == 0 or done == self.config.total_steps:
        self.evaluate(done)
      if stop.is_set or done == self.config.total_steps or self.checkpoints.is_due(done):
        self.save(done, force=stop.is_set or done == self.config.total_steps)
      if stop.is_set and done < self.config.total_steps:
        return self.finish(done, STOPPED)
    return self.finish(self.config.total_steps, 0)

  def _is_boundary(self, done: int) -> bool:
    every = (self.config.log_every, self.config.eval_every)
    return (
      any(done % steps == 0 for steps in every)
      or done == self.config.total_steps
      or self.checkpoints.is_due(done)
    )

  def note(self, done: int, metrics) -> None:
    """Adds a step's metrics to the interval's; logs at its end; stops a run that has diverged."""
    fetched = jax.device_get(metrics)
    for name, (total, weight) in fetched.items():
      before = self.sums.get(name, (0.0, 0.0))
      self.sums[name] = (before[0] + float(total), before[1] + float(weight))
    loss = float(fetched["loss"][0])
    self.progress.update(1)
    self.progress.set_postfix_str(f"loss {loss:.4g}", refresh=False)
    self._stop_if_diverged(done, float(fetched["skipped_in_a_row"][0]))
    if done % self.config.log_every == 0 or done == self.config.total_steps:
      means = {f"train/{name}": value for name, value in reduce_metrics(self.sums).items()}
      for last in ("skipped_updates", "skipped_in_a_row", "learning_rate"):
        means[f"train/{last}"] = float(fetched[last][0])
      speed = self.throughput.measure(done)
      self.sums = {}
      self.writer.write(done, means | speed)
      if self.progress.disable:
        self.say(self._line(done, means | speed))

  def _line(self, done: int, values: dict[str, float]) -> str:
    speed = values.get("perf/tokens_per_second")
    left = (self.config.total_steps - done) / values["perf/steps_per_second"] if speed else None
    parts = [f"step {done:,}/{self.config.total_steps:,}", f"loss {values['train/loss']:.4f}"]
    parts += [f"{name} {values['train/' + name]:.4f}" for name in self.run.recipe.term_weights]
    parts += [f"{speed:,.0f} tokens/s", f"{_duration(left)} left"] if speed else []
    return "  ".join(parts)

  def _stop_if_diverged(self, done: int, in_a_row: float) -> None:
    if in_a_row >= self.config.max_nonfinite_steps:
      latest = self.checkpoints.latest_step()
      raise DivergedError(
        f"loss or gradients were not finite for {int(in_a_row)} steps in a row up to step {done:,}; none of "
        f"those updates was applied; lower optimizer.learning_rate or raise optimizer.warmup_steps "
        f"(last checkpoint: {'none' if latest is None else f'step {latest:,}'})"
      )

  def evaluate(self, done: int) -> None:
    """Writes held-out metrics; does nothing if evaluation is off."""
    if not self.config.eval_batches:
      return
    means = evaluate(
      self.run, self.eval_step, self.state.params, self.heldout, progress=done / self.config.total_steps
    )
    self.writer.write(done, {f"eval/{name}": value for name, value in means.items()})
    parts = [f"{name} {means[name]:.4f}" for name in self.run.recipe.term_weights if name in means]
    self.say("  ".join([f"held-out at step {done:,}", f"loss {means['loss']:.4f}", *parts]))
    self.throughput.restart(done)

  def save(self, done: int, *, force: bool) -> None:
    """Starts a save in the background."""
    sums = {name: list(pair) for name, pair in self.sums.items()}
    meta = {"config": self.run.config.to_dict(), "interval_sums": sums, **self.digests}
    self.checkpoints.save(done, self.state._asdict(), meta, force=force)

  def finish(self, done: int, code: int) -> int:
    """Waits for the last save and closes everything."""
    started = time.perf_counter()
    self.checkpoints.wait()
    self.batches.close()
    self.writer.close()
    self.progress.close()
    where = os.path.join(self.checkpoints.directory, str(done))
    what = "Finished" if code == 0 else "Stopped as asked; the same command continues"
    waited = time.perf_counter() - started
    self.say(f"{what}: step {done:,}, checkpoint {os.path.relpath(where)} (waited {waited:.1f} s for it)")
    return code


def _duration(seconds: float) -> str:
  minutes, seconds = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  if days:
    return f"{days} d {hours} h"
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
