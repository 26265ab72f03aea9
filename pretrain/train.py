"""The loop: build, resume, step, log, evaluate, save, stop."""

import os
import time
from collections.abc import Callable

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from data.errors import DivergedError
from pretrain import flops, metrics, preflight, prepared, provenance, resume
from pretrain.batches import Batches, open_records, records_digests
from pretrain.checkpoint import Checkpoints
from pretrain.evaluate import evaluate
from pretrain.metrics import MetricWriter, Throughput, reduce_metrics
from pretrain.run import Run, make_run
from pretrain.step import TrainState
from pretrain.stop import STOPPED, StopRequest


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
  preflight.check(config, workdir)
  directory = prepared.ensure_records(config, download=download)
  records, heldout = open_records(config, directory)
  run = make_run(config, prepared.token_ids(directory))
  digests = records_digests(directory)
  latest, taken = preflight.newest_step(workdir), {}
  if latest is None:  # on shapes alone: what does not fit is an error before anything is compiled
    taken = resume.warm_start(
      run.abstract_state.params, config, vocabulary_digest=digests["vocabulary_digest"], say=say
    )
  checkpoints = Checkpoints(
    workdir,
    every=config.train.checkpoint_every,
    keep=config.train.checkpoints_to_keep,
    keep_steps=config.train.checkpoint_steps,
  )
  with jax.set_mesh(run.mesh):
    try:
      saved = None if latest is None else checkpoints.restore_meta()
      if saved is not None:
        for line in resume.check_same_run(run.config, digests, saved):
          say(f"Config changed since step {latest:,}: {line}")
        if latest >= config.train.total_steps:
          say(f"{workdir} is finished: step {latest:,} of {config.train.total_steps:,}")
          return 0
      facts = digests | provenance.describe(config, directory, saved)
      prepared.keep_vocabulary(directory, workdir)
      state, sums = _first_state(run, checkpoints, latest, taken, say)
      loop = _Loop(run, records, heldout, checkpoints, facts, workdir, state, sums, say)
      return loop.run_to_end()
    finally:
      checkpoints.close()


def _first_state(
  run: Run,
  checkpoints: Checkpoints,
  latest: int | None,
  taken: dict,
  say: Callable[[str], None],
) -> tuple[TrainState, dict]:
  """Resume, else from scratch with what was taken; and the sums of a logging interval the save cut in two."""
  if latest is not None:
    restored, meta = checkpoints.restore(run.abstract_state._asdict())
    say(f"Continuing at step {latest:,} from {checkpoints.directory}")
    return TrainState(**restored), meta["interval_sums"]
  state = run.init_state()
  params = jax.tree.map(
    lambda fresh, part: part if isinstance(part, jax.Array) else fresh, state.params, taken
  )
  return state._replace(params=params), {}


class _Loop:
  """One run's moving parts."""

  def __init__(self, run, records, heldout, checkpoints, facts, workdir, state, sums, say) -> None:
    self.run, self.heldout, self.checkpoints, self.facts = run, heldout, checkpoints, facts
    self.config, self.state, self.first = run.config.train, state, int(state.step)
    self.stop = StopRequest()
    self.is_evaluated = self.first > 0 and any(
      line["step"] == self.first and metrics.heldout_means(line) for line in metrics.read(workdir)
    )
    self.train_step, self.eval_step = run.compile_train_step(), run.compile_eval_step()
    # Without a checkpoint nothing that an earlier start wrote is a part of this run, not even step 0.
    self.writer = MetricWriter(workdir, step=self.first or -1)
    self.batches = Batches(records, run, first=self.first)
    self.progress = tqdm(
      total=self.config.total_steps,
      initial=self.first,
      unit="step",
      disable=not prepared.is_terminal(),
      dynamic_ncols=True,
    )
    self.say = self.progress.write if prepared.is_terminal() else say
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
    try:
      with self.stop:
        done, code = self._steps()
        started = time.perf_counter()
        self.checkpoints.wait()
        waited = time.perf_counter() - started
    finally:
      self.batches.close()
      self.writer.close()
      self.progress.close()
    if done == 0:
      self.say("Stopped as asked before the first step; the same command starts again")
      return code
    where = os.path.relpath(os.path.join(self.checkpoints.directory, str(done)))
    what = "Finished" if code == 0 else "Stopped as asked; the same command continues"
    self.say(f"{what}: step {done:,}, checkpoint {where} (waited {waited:.1f} s for it)")
    return code

  def _steps(self) -> tuple[int, int]:
    """Updates done and the exit code."""
    pending, total = None, self.config.total_steps
    # A stop request may have cut the evaluation of the step that was saved.
    if self.first == 0 or (self.first % self.config.eval_every == 0 and not self.is_evaluated):
      self.evaluate(self.first)
    if self.stop.is_set:
      return self.first, STOPPED
    for at in range(self.first, total):
      self.state, metrics = self.train_step(self.state, self.batches.at(at))
      if pending is not None:  # step n runs while the host reads step n - 1
        self.note(at, pending)
      pending, done = metrics, at + 1
      if at == self.first:
        jax.block_until_ready(metrics)
        self.throughput.restart(done)
      if self._is_boundary(done) or self.stop.is_set:
        self.note(done, pending)
        pending = None
      if done % self.config.eval_every == 0 or done == total:
        self.evaluate(done)
      # A request that came after the lines above: this step is not in the sums yet, the next one stops.
      is_stopping = self.stop.is_set and pending is None
      if is_stopping or done == total or self.checkpoints.is_due(done):
        self.save(done, force=is_stopping or done == total)
      if is_stopping and done < total:
        return done, STOPPED
    return total, 0

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
    rate = self.progress.format_dict["rate"] or 0.0
    tokens = rate * self.config.batch_size * self.run.config.data.length
    self.progress.set_postfix_str(f"loss {loss:.4g}, {tokens:,.0f} tokens/s", refresh=False)
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
    """Writes held-out metrics; not if evaluation is off, or if a stop is asked for before the last step."""
    if self.heldout is None:
      return
    means = evaluate(
      self.run,
      self.eval_step,
      self.state.params,
      self.heldout,
      progress=done / self.config.total_steps,
      is_stopping=lambda: self.stop.is_set and done < self.config.total_steps,
    )
    if means is None:
      return
    self.writer.write(done, {f"eval/{name}": value for name, value in means.items()})
    parts = [f"{name} {means[name]:.4f}" for name in self.run.recipe.term_weights if name in means]
    self.say("  ".join([f"held-out at step {done:,}", f"loss {means['loss']:.4f}", *parts]))
    self.throughput.restart(done)

  def save(self, done: int, *, force: bool) -> None:
    """Starts a save in the background."""
    sums = {name: list(pair) for name, pair in self.sums.items()}
    devices = f"{self.run.mesh.devices.size} x {jax.devices()[0].device_kind}"
    meta = {"config": self.run.config.to_dict(), "interval_sums": sums, "devices": devices, **self.facts}
    self.checkpoints.save(done, self.state._asdict(), meta, force=force)


def _duration(seconds: float) -> str:
  minutes, seconds = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  if days:
    return f"{days} d {hours} h"
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
