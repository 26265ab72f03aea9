"""What all tasks of one start of fine-tuning share: checkpoint, protocol, seeds, how a search is set up."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from data.errors import ConfigError
from finetune.papers import protocols, reference_rows, spaces
from finetune.papers.reference_rows import Reference
from finetune.papers.spaces import Cell
from finetune.search import sharing, warm_start
from finetune.search.classification import HeadSettings
from finetune.search.plan import Plan
from finetune.search.program import Program
from finetune.search.results import Results
from finetune.search.search import Search, Settings, Task
from pretrain.models.config import EncoderConfig
from pretrain.optim import OptimizerSettings
from pretrain.stop import StopRequest

NUMBERS = 1  # version of what a run computes: another one makes stored results those of another program


class Session:
  """One start of `finetune.main`."""

  def __init__(
    self,
    config: ConfigDict,
    workdir: str,
    *,
    stop: StopRequest,
    say: Callable[[str], None] = print,
    show_progress: bool = False,
  ) -> None:
    """Reads the checkpoint; nothing is compiled and no device is used.

    Args:
      config: validated.
      workdir: results, models and tables go there.
      stop: asked after every step.
      say: takes lines for the user.
      show_progress: whether somebody watches a bar.

    Raises:
      UserError: see data/errors.py.
    """
    self.config, self.workdir, self.stop, self.say = config, Path(workdir), stop, say
    self.show_progress = show_progress
    step = None if config.checkpoint_step < 0 else config.checkpoint_step
    self.start = warm_start.load(
      config.checkpoint,
      step=step,
      vocabulary_directory=config.vocabulary,
      dtype=config.model.dtype,
      remat=config.model.remat,
      from_scratch=config.from_scratch,
    )
    self.size = config.size
    if config.size == "auto":
      self.size = protocols.encoder_size(self.start.config.hidden_size)
    self.protocol = protocols.get(config.protocol, self.size)
    rate = self.protocol.dropout if config.model.dropout < 0 else config.model.dropout
    self.encoder: EncoderConfig = dataclasses.replace(self.start.config, dropout=rate, attention_dropout=rate)

  @property
  def pad_id(self) -> int:
    """Of the checkpoint's vocabulary."""
    return self.start.vocabulary.special_ids.pad

  @property
  def seeds(self) -> list[int]:
    """Of the runs of a cell."""
    count = self.config.search.num_seeds or self.protocol.num_seeds
    return list(range(self.config.seed, self.config.seed + count))

  @property
  def test_seeds(self) -> list[int]:
    """Of the runs of the chosen cell, the best of which predicts the test set; the others are among them."""
    count = self.config.search.num_test_seeds or self.protocol.num_test_seeds
    return list(range(self.config.seed, self.config.seed + max(count, len(self.seeds))))

  @property
  def title(self) -> str:
    """Of reports."""
    return self.config.checkpoint + (" (its encoder from scratch)" if self.config.from_scratch else "")

  @property
  def references(self) -> list[Reference]:
    """The papers' rows to print beside ours: of the recipe that the config names, or of the checkpoint's."""
    encoder = self.start.config
    own = reference_rows.recipe_of(
      self.start.meta,
      heads=self.start.heads,
      hidden_size=encoder.hidden_size,
      num_layers=encoder.num_layers,
    )
    return reference_rows.reference_rows(self.config.output.compare_with or own, self.protocol.name)

  def max_length(self, task: str) -> int:
    """Tokens of an example of a task.

    Raises:
      ConfigError: the checkpoint has fewer positions than were asked for.
    """
    positions = self.start.config.max_length
    asked = self.config.data.max_length
    if asked > positions:
      raise ConfigError(
        f"data.max_length={asked}: the checkpoint has {positions} positions; use at most those"
      )
    return min(asked or spaces.space(self.protocol.name, task, self.size).length, positions)

  def cells(self, task: str) -> list[Cell]:
    """The cells of a task's search, with what the config replaces.

    Raises:
      ConfigError: values that make no sense, batches that cannot be taken in `train.microbatches` parts, or a
        best known cell that nobody gives.
    """
    cells, parts = self._cells(task), self.config.train.microbatches
    for cell in cells:
      if cell.batch_size % parts:
        raise ConfigError(
          f"train.microbatches={parts} does not divide the batch size {cell.batch_size} of cell {cell.name} "
          f"({task}); use a divisor of all batch sizes, or set search.batch_sizes"
        )
    return cells

  def _cells(self, task: str) -> list[Cell]:
    search, name = self.config.search, self.protocol.name
    dimensions = ("batch_sizes", "learning_rates", "epochs", "warmup_fractions", "warmup_steps")
    given = {dimension: search[dimension] for dimension in dimensions}
    if search.cells == "all":
      return protocols.cells(name, task, self.size, seed=self.config.seed, **given)
    known = spaces.best_known(name, task, self.size)
    if known is None:
      raise ConfigError(
        f"search.cells='best_known': nobody gives one for {task}, protocol {name!r}, {self.size} encoders; "
        "use search.cells='all', with search.learning_rates and the like for less than the whole space"
      )
    warmup = {"warmup_steps": (known.warmup_steps,), "warmup_fractions": (known.warmup_fraction,)}
    fixed = {
      "batch_sizes": (known.batch_size,),
      "learning_rates": (known.learning_rate,),
      "epochs": (known.epochs,),
    } | {dimension: values for dimension, values in warmup.items() if values != (None,)}
    if given["warmup_fractions"] or given["warmup_steps"]:
      fixed = {dimension: values for dimension, values in fixed.items() if dimension not in warmup}
    replaced = {dimension: values for dimension, values in given.items() if values}
    return protocols.cells(name, task, self.size, **(fixed | replaced))

  def describe(self, plan: Plan) -> str:
    """The line about the work of a search and the most that is compiled for it."""
    per_epoch = {cell.batch_size: plan.steps_per_epoch(cell.batch_size) for cell in plan.cells}
    num_seeds = len(plan.seeds or self.seeds)
    steps = sum(per_epoch[cell.batch_size] * cell.epochs for cell in plan.cells) * num_seeds
    most = len(plan.buckets.lengths) * len(per_epoch) + len(set(plan.eval_lengths))
    counts = f"{_count(len(plan.cells), 'cell')} x {_count(num_seeds, 'seed')}"
    return (
      f"{plan.name}: {counts}, {steps:,} steps of single runs; at most {most} shapes are compiled for each "
      "number of runs in a program"
    )

  def search(self, plan: Plan) -> Search:
    """Sets a search up; nothing is compiled yet."""
    train = self.config.train
    program = Program(
      plan.problem,
      self.start.init_encoder,
      OptimizerSettings(learning_rate=0.0, total_steps=1, **self.protocol.optimizer),
      mapping=train.mapping,
      microbatches=train.microbatches,
    )
    per_epoch = self.config.search.evaluations_per_epoch or self.protocol.evaluations_per_epoch
    runs_at_once = self.runs_at_once(
      program,
      batch_size=max(cell.batch_size for cell in plan.cells),
      length=plan.buckets.lengths[-1],
      num_seeds=len(plan.seeds or self.seeds),
    )
    settings = Settings(
      summary=self.protocol.summary,
      evaluations_per_epoch=per_epoch,
      shape_seed=self.config.seed,
      runs_at_once=runs_at_once,
      save_seconds=60.0 * train.save_minutes,
      show_progress=self.show_progress,
    )
    task = Task(plan.name, plan.metric, plan.train, plan.buckets, plan.evaluate, self.pad_id)
    results = Results(self.workdir, self._fingerprint(plan, per_epoch))
    return Search(task, program, results, settings, stop=self.stop, say=self.say)

  @property
  def head(self) -> HeadSettings:
    """Of classification."""
    return HeadSettings(**self.protocol.head)

  def runs_at_once(self, program: Program, *, batch_size: int, length: int, num_seeds: int) -> int:
    """The most runs in one program: as many as the config says, or as memory holds.

    Args:
      program: of the task.
      batch_size: of a run.
      length: padded, of its rows.
      num_seeds: runs of a cell.
    """
    train = self.config.train
    if train.runs_at_once:
      return train.runs_at_once
    shapes = jax.eval_shape(self.start.init_encoder, jax.random.key(0))
    tokens = batch_size // train.microbatches * length
    fitting = sharing.runs_that_fit(
      num_parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
      activation_bytes=sharing.activation_bytes(self.encoder, tokens, length),
      is_vectorized=program.is_vectorized,
      devices=program.devices,
    )
    # One by one nothing is gained by several cells at once, and each is told when it is finished.
    return fitting if program.is_vectorized else min(fitting, max(num_seeds, len(program.devices)))

  @property
  def identity(self) -> dict[str, Any]:
    """What decides the numbers of every run of every task, for fingerprints."""
    encoder = dataclasses.asdict(self.encoder) | {"dtype": str(self.encoder.compute_dtype)}
    return {
      "numbers": NUMBERS,
      "checkpoint": self.start.digest,
      "vocabulary": self.start.vocabulary.digest,
      "encoder": {name: value for name, value in encoder.items() if name not in ("remat", "scan_unroll")},
    }

  def _fingerprint(self, plan: Plan, evaluations_per_epoch: int) -> dict[str, Any]:
    """Everything besides cell and seed that decides a run's numbers."""
    return self.identity | {
      "data": plan.digest,
      "protocol": self.protocol.name,
      "optimizer": dict(self.protocol.optimizer),
      "head": dict(self.protocol.head),
      "max_length": plan.max_length,
      "padded_lengths": list(plan.buckets.lengths),
      "evaluations_per_epoch": evaluations_per_epoch,
      "shape_seed": self.config.seed,
    }


def _count(number: int, noun: str) -> str:
  return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def compiled(shapes: Sequence[tuple]) -> str:
  """'32x64, 32x128' of training shapes and the lengths of evaluation: what was compiled, for the user."""
  training = sorted({shape[2:] for shape in shapes if shape[0] == "step"})
  evaluation = sorted({shape[2:] for shape in shapes if shape[0] == "outputs"})
  parts = [
    f"{name} {', '.join(f'{batch}x{length}' for batch, length in found)}"
    for name, found in (("training", training), ("evaluation", evaluation))
    if found
  ]
  return f"{len(shapes)} programs compiled ({'; '.join(parts)})"
