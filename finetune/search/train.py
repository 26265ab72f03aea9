"""Trains the runs of a search one after another; a run's score is that of its best evaluation.

The state is saved from time to time, and a killed run resumes from it exactly: examples, dropout and shapes
are functions of the step.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from data import progress
from finetune.papers.protocols import LARGEST_RATE
from finetune.search.problem import ArrayTree, Batch, OutputsOf, Problem
from pretrain import optim, step
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.checkpoints.resume import newest_good_step
from pretrain.logs.intervals import Progress
from pretrain.logs.metrics import MetricWriter
from pretrain.mesh.devices import compiler_options, memory_errors
from pretrain.mesh.sharding import BATCH_AXES, make_mesh
from pretrain.ops.row_random import step_row_keys
from pretrain.settings.run import MeshSettings
from pretrain.stop import StopRequest

logger = logging.getLogger(__name__)

_ENTRIES = 200  # of a run's metrics file, at most, besides its evaluations
_LOGGED = ("loss", "learning_rate", "grad_norm")


class Hyper(NamedTuple):
  """Seed and hyperparameters of a run: arguments of the compiled functions, so that all cells share these."""

  seed: Any  # int32: order of examples, heads, dropout
  learning_rate: Any  # float32, at most `LARGEST_RATE`
  total_steps: Any  # int32
  warmup_steps: Any  # int32

  def arrays(self) -> "Hyper":
    """Returns the values as arrays of their dtypes."""
    kinds = (np.int32, np.float32, np.int32, np.int32)
    return Hyper(*(np.asarray(value, kind) for value, kind in zip(self, kinds)))


class Trainer:
  """Initialisation, training step and outputs of a task, compiled once for each shape of a batch."""

  def __init__(
    self,
    problem: Problem,
    init_encoder: Callable[[jax.Array], dict],
    optimizer: Mapping[str, Any],
    *,
    microbatches: int = 1,
    devices: Sequence[jax.Device],
  ) -> None:
    """Stores the settings; functions are compiled when they are first called.

    Args:
      init_encoder: key to the encoder's parameters: loaded ones, the same for every key, or fresh ones.
      optimizer: fields of `pretrain.optim.OptimizerSettings` but for learning rate and steps.
      microbatches: parts of a batch that are computed one after another.
      devices: that share the rows of a batch; their number divides the rows of every microbatch.
    """
    self._problem, self._init_encoder = problem, init_encoder
    self._settings = optim.OptimizerSettings(learning_rate=LARGEST_RATE, total_steps=1, **optimizer)
    self.microbatches = microbatches
    self.mesh = make_mesh(MeshSettings(), devices=devices)
    whole, rows = PartitionSpec(), PartitionSpec(BATCH_AXES)
    self._whole, self._rows = NamedSharding(self.mesh, whole), NamedSharding(self.mesh, rows)
    options = compiler_options(devices[0].device_kind)
    self._init = jax.jit(self._initial, out_shardings=self._whole)
    # (state, placed batch, placed hyper) to (state, {name: (sum, weight)}) in `mesh`; the state is donated.
    self.step = jax.jit(
      lambda state, batch, hyper: self._step_of(hyper, state.params)(state, batch),
      donate_argnums=0,
      compiler_options=options,
    )
    self._outputs = jax.jit(
      jax.shard_map(
        lambda params, batch: problem.outputs(params, batch, None),
        mesh=self.mesh,
        in_specs=(whole, rows),
        out_specs=rows,
        check_vma=False,
      )
    )
    self._shapes: set[tuple] = set()  # compiled

  def init_state(self, hyper: Hyper) -> step.TrainState:
    """Returns the training state of a run before its first step."""
    return self._init(hyper.arrays())

  def abstract_state(self, hyper: Hyper) -> step.TrainState:
    """Returns the shapes, dtypes and shardings of a run's training state, to restore a saved one."""
    shapes = jax.eval_shape(self._init, hyper.arrays())
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._whole), shapes
    )

  def place(self, tree: ArrayTree) -> ArrayTree:
    """Copies host arrays that all devices read, such as parameters, to the devices."""
    return jax.device_put(tree, self._whole)

  def is_new(self, function: str, batch: Batch) -> bool:
    """Returns whether a call of 'step' or 'outputs' with a batch of this shape is the first one."""
    shape, known = (function, *batch["ids"].shape), len(self._shapes)
    self._shapes.add(shape)
    return len(self._shapes) > known

  def place_batch(self, batch: Batch) -> Batch:
    """Copies the host arrays [batch, ...] of a batch to the devices, which share its rows."""
    return jax.device_put(batch, self._rows)

  def outputs(self, params: ArrayTree, batch: Batch) -> ArrayTree:
    """Returns the task's outputs without dropout: host arrays [batch, ...]."""
    return jax.device_get(self._outputs(params, self.place_batch(batch)))

  def _initial(self, hyper: Hyper) -> step.TrainState:
    # Folded with a constant that no step uses, so that heads are independent of dropout.
    keys = jax.random.split(jax.random.fold_in(jax.random.key(hyper.seed), 0x1717))
    params = {"encoder": self._init_encoder(keys[0]), "heads": self._problem.init_heads(keys[1])}
    return step.init_state(params, self._optimizer(hyper, params)[0])

  def _optimizer(self, hyper: Hyper, params: ArrayTree):
    settings = dataclasses.replace(
      self._settings,
      learning_rate=hyper.learning_rate,
      total_steps=hyper.total_steps,
      warmup_steps=hyper.warmup_steps,
    )
    schedule = optim.SCHEDULES[settings.schedule](settings)
    return optim.make_optimizer(settings, params=params, frozen=_none_is_frozen, schedule=schedule)

  def _step_of(self, hyper: Hyper, params: ArrayTree) -> Callable:
    """Returns the training step of the run with these hyperparameters: (state, batch) to (state, metrics)."""
    optimizer, schedule = self._optimizer(hyper, params)

    def batch_of(data: Batch, at: jax.Array) -> Batch:
      keys = jax.tree.map(lambda rows: step_row_keys(hyper.seed, at, rows), self._problem.rows(data))
      return data | {"row_keys": keys}

    # The largest rate is checked for all: a check of traced rates reads all parameters.
    stays_finite = optim.stays_finite(self._settings)
    return step.make_train_step(
      step.StepLoss(batch_of, lambda data: jnp.sum(data["weights"]), self._loss),
      step.StepUpdate(optimizer, schedule, _none_is_frozen, self._settings.clip_norm, stays_finite),
      microbatches=1 if self._problem.compares_rows else self.microbatches,
    )

  def _loss(self, params: dict, batch: Batch, total: jax.Array):
    outputs = self._problem.outputs(params, batch, batch["row_keys"])
    loss, metrics = self._problem.loss(outputs, batch)
    return loss / total, metrics


def _none_is_frozen(path: str) -> bool:
  del path
  return False


class Stopped(Exception):
  """Raised after a stop request; the state is saved if `train` was called with a folder for it."""


class Schedule(NamedTuple):
  """The steps after which a run is evaluated; the last of them ends the run."""

  num_steps: int  # updates of a run
  evaluate_at: tuple[int, ...]  # increasing numbers of updates; the last is `num_steps`
  steps_per_epoch: int  # to compute the epoch of an evaluation


class Outcome(NamedTuple):
  """The evaluations of a run, and its parameters at the best one."""

  evaluations: list[dict]  # with the fields of `results.Evaluation`
  params: Any  # {'encoder', 'heads'} at the best evaluation, on the devices


class Work(NamedTuple):
  """How a run is stopped, saved and shown."""

  stop: StopRequest  # checked after every step and before every batch of an evaluation
  label: str = ""  # of the run, in lines and on the bar
  folder: Path | None = None  # of the state of this run alone; None: an interrupted run starts over
  seconds: float = 0.0  # between saves; 0: one at every evaluation
  logs: Path | None = None  # of metrics file and TensorBoard events; None: neither is written
  show_progress: bool = False  # whether a bar is shown; without one losses and evaluations are logged


def train(
  trainer: Trainer,
  hyper: Hyper,
  feed: Callable[[int], Batch],
  evaluate: Callable[[OutputsOf], dict[str, float]],
  schedule: Schedule,
  *,
  metric: str,
  work: Work,
) -> Outcome:
  """Trains a run to its end, from the start or from a saved state.

  Args:
    feed: step from 0 to host arrays [batch, ...], a pure function.
    evaluate: gets a function from a host batch to host outputs; returns metrics. It is repeated on resume if
      a stop was requested meanwhile.
    metric: the best evaluation is the first with the highest value of it.

  Raises:
    Stopped: a stop was requested, maybe during an evaluation; the state is saved if `work` has a folder.
    ConfigError: the run does not fit into memory.
    StorageError: the state cannot be saved.
  """

  def memory_line(reason: str) -> str:
    more = f"--config.train.microbatches={2 * trainer.microbatches}"
    return f"{work.label}: not enough memory ({reason}); use\n  {more}"

  with memory_errors(memory_line), contextlib.ExitStack() as ending:
    ending.enter_context(jax.set_mesh(trainer.mesh))  # by which the step divides the rows
    run = _Run(trainer, hyper, evaluate, schedule, metric, work, ending)
    try:
      run.evaluate_if_due()  # an earlier start may have stopped between its last step and its evaluation
      while run.done < schedule.num_steps:
        run.update(feed(run.done))
        if work.stop.is_set:
          raise Stopped
        run.save_in_time(is_evaluation=run.evaluate_if_due())
    except Stopped:
      logger.info(
        f"  {work.label}: stop requested at step {run.done:,}" + ("; saving" if work.folder else "")
      )
      run.save()
      raise
    return Outcome(run.evaluations, run.best)


class _Run:
  """A run while it trains: its state, evaluations and best parameters, and what is written of it."""

  def __init__(
    self,
    trainer: Trainer,
    hyper: Hyper,
    evaluate: Callable[[OutputsOf], dict[str, float]],
    schedule: Schedule,
    metric: str,
    work: Work,
    ending: contextlib.ExitStack,
  ) -> None:
    """Restores the run, or starts it; `ending` closes its files. Other arguments are those of `train`."""
    self._trainer, self._hyper, self._evaluate = trainer, trainer.place(hyper.arrays()), evaluate
    self._schedule, self._metric, self._work = schedule, metric, work
    self._checkpoints, saved = None, {}
    if work.folder is not None:
      self._checkpoints = Checkpoints(work.folder, every=1, keep=1)
      ending.callback(self._checkpoints.close)
    if self._checkpoints is not None and newest_good_step(self._checkpoints.directory.parent) is not None:
      abstract = trainer.abstract_state(hyper)
      state, saved = self._checkpoints.restore(abstract._asdict() | {"best": abstract.params})
      self.best = state.pop("best")
      self._state = step.TrainState(**state)
    else:
      self._state = trainer.init_state(hyper)
      self.best = None
    self.done = saved.get("step", 0)  # updates
    self.evaluations: list[dict] = saved.get("evaluations", [])
    self._pending: step.Metrics | None = None  # of the update that may still be running
    self._saved_at = time.monotonic()
    self._log = _Log(work, saved, done=self.done, total=schedule.num_steps)
    ending.callback(self._log.end)
    options = {"is_shown": work.show_progress, "initial": self.done, "leave": False}
    self._bar = Progress(progress.bar("step", total=schedule.num_steps, desc=work.label, **options))
    ending.callback(self._bar.end)

  def update(self, batch: Batch) -> None:
    """Computes the next update; its figures are read when the one after it runs."""
    if self._trainer.is_new("step", batch):
      self._log.compiling("a training step", batch)
    placed = self._trainer.place_batch(batch)
    self._state, metrics = self._trainer.step(self._state, placed, self._hyper)
    # One step runs while the next is prepared. With more steps queued, a stop would wait for all of them.
    self._read_figures()
    self._pending, self.done = metrics, self.done + 1

  def _read_figures(self) -> None:
    if self._pending is not None:
      figures, self._pending = jax.device_get(self._pending), None
      self._log.seen(self.done, figures)
      self._bar.seen(self.done, figures, self._state)

  def evaluate_if_due(self) -> bool:
    """Evaluates the run if the schedule says so; returns whether it did."""
    last = self.evaluations[-1]["step"] if self.evaluations else 0
    if self.done not in self._schedule.evaluate_at or last >= self.done:
      return False
    self._read_figures()

    def outputs_of(batch: Batch) -> Any:
      if self._work.stop.is_set:
        raise Stopped
      if self._trainer.is_new("outputs", batch):
        self._log.compiling("an evaluation", batch)
      return self._trainer.outputs(self._state.params, batch)

    metrics = {name: float(value) for name, value in self._evaluate(outputs_of).items()}
    self._log.evaluation(self.done, metrics, self._metric)
    best = max((one["metrics"][self._metric] for one in self.evaluations), default=None)
    if best is None or metrics[self._metric] > best:
      self.best = jax.tree.map(jnp.copy, self._state.params)  # the step donates its state
    where = {"step": self.done, "epoch": round(self.done / self._schedule.steps_per_epoch, 4)}
    self.evaluations.append(where | {"metrics": metrics, "skipped_updates": int(self._state.skipped)})
    return True

  def save(self) -> None:
    """Saves the state, unless there is no folder for it or the run is finished."""
    is_finished = bool(self.evaluations) and self.evaluations[-1]["step"] == self._schedule.num_steps
    if self._checkpoints is None or is_finished:
      return
    self._read_figures()
    best = self._state.params if self.best is None else self.best
    meta = {"evaluations": self.evaluations, "interval_losses": self._log.losses}
    self._checkpoints.save(self.done, self._state._asdict() | {"best": best}, meta, force=True)
    self._saved_at = time.monotonic()

  def save_in_time(self, *, is_evaluation: bool) -> None:
    """Saves the state if `Work.seconds` have passed since the last save."""
    is_time = time.monotonic() - self._saved_at >= self._work.seconds
    if is_time and (is_evaluation or self._work.seconds):
      self.save()


class _Log:
  """The metrics file, TensorBoard events and log lines of a run.

  A logged loss is the mean over the steps since the last entry.
  """

  def __init__(self, work: Work, saved: Mapping[str, Any], *, done: int, total: int) -> None:
    """Opens the files, and removes entries of an earlier start after `done` updates.

    `saved` is the meta of the saved state from which the run continues; {}: a new run. StorageError: a file
    cannot be written.
    """
    self._writer = None if work.logs is None else MetricWriter(work.logs, step=done)
    self._total, self._label, self._has_lines = total, work.label, not work.show_progress
    self._every = max(total // _ENTRIES, 1)
    self._said = self._before = time.monotonic()
    self._took: list[float] = []  # seconds of steps for which nothing was compiled
    self._is_compiling = False
    self.losses: list[float] = saved.get("interval_losses", [])  # of the steps since the last entry

  def seen(self, at: int, figures: Mapping[str, Any]) -> None:
    """Writes an update's loss, learning rate and norm of gradients if an entry is due."""
    values = {name: float(figures[name][0]) for name in _LOGGED}
    now = time.monotonic()
    if not self._is_compiling:
      self._took.append(now - self._before)
    self._before, self._is_compiling = now, False
    self.losses.append(values["loss"])
    loss = float(np.mean(np.asarray(self.losses, np.float32)))
    if at % self._every == 0 or at == self._total:
      self.losses = []
      if self._writer is not None:
        self._writer.write(at, values | {"loss": loss})
    if self._has_lines and now - self._said >= progress.SECONDS_BETWEEN_LINES:
      self._said = now
      logger.info(f"  {self._where(at)}: loss {loss:.4g}, rate {values['learning_rate']:.2g}{self._left(at)}")

  def evaluation(self, at: int, scores: Mapping[str, float], metric: str) -> None:
    """Writes the development scores after `at` updates."""
    if self._writer is not None:
      self._writer.write(at, {f"dev/{name}": value for name, value in scores.items()})
    if self._has_lines and at < self._total:
      logger.info(f"  {self._where(at)}: {metric} {100 * scores[metric]:.1f}{self._left(at)}")

  def compiling(self, what: str, batch: Batch) -> None:
    """Logs that a program for batches of this shape is being compiled, which may take minutes."""
    self._is_compiling = True
    if self._has_lines:
      size, length = batch["ids"].shape
      logger.info(f"  {self._label}: compiling {what} on {size} x {length} tokens ...")

  def end(self) -> None:
    """Closes the files."""
    if self._writer is not None:
      self._writer.close()

  def _where(self, at: int) -> str:
    return f"{self._label} step {at:,}/{self._total:,}"

  def _left(self, at: int) -> str:
    if not self._took:
      return ""
    minutes, rest = divmod(int((self._total - at) * float(np.mean(self._took))), 60)
    return f", {minutes}:{rest:02} left"
