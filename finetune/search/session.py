"""A session: checkpoint, protocol, seeds and plans that all tasks of a fine-tuning command share."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from data.errors import ConfigError
from finetune.papers import glue_metrics, protocols
from finetune.papers.glue_metrics import Reference
from finetune.papers.protocols import Cell
from finetune.search import sharing, warm_start
from finetune.search.classification import HeadSettings
from finetune.search.examples import Buckets, Examples, Feed, TrainingOrder
from finetune.search.plan import Plan
from finetune.search.program import OutputsOf, Problem, Program
from pretrain.models.layers import EncoderConfig, activation_bytes
from pretrain.stop import StopRequest

_HOW = ("attention", "remat", "scan_unroll")  # fields that change speed and memory, not the results
NUMBERS = 1  # raise it when a change alters the numbers of runs: older stored results are then refused


class Session:
  """The checkpoint and the settings of one `finetune.main` command."""

  def __init__(
    self,
    config: ConfigDict,
    workdir: str,
    *,
    stop: StopRequest,
    show_progress: bool = False,
  ) -> None:
    """Reads the checkpoint that a validated config names; nothing is compiled and no device is used.

    Results, models and tables are written to `workdir`.

    Raises:
      UserError: see data/errors.py.
    """
    self.config, self.workdir, self.stop = config, Path(workdir), stop
    self.show_progress = show_progress
    step = None if config.checkpoint_step < 0 else config.checkpoint_step
    self.start = warm_start.load(
      config.checkpoint,
      step=step,
      vocabulary_directory=config.vocabulary,
      from_scratch=config.from_scratch,
      layers=config.checkpoint_layers,
    )
    self.size = config.size
    if config.size == "auto":
      self.size = protocols.encoder_size(self.start.encoder.config.hidden_size)
    self.protocol = protocols.get(config.protocol, self.size)
    fields = config.model.to_dict()
    rate = fields.pop("dropout")
    # The embedding stage keeps the rates of the checkpoint, which its export says.
    if rate >= 0 or config.kind != "embedding":
      rate = self.protocol.dropout if rate < 0 else rate
      fields |= {"dropout": rate, "attention_dropout": rate}
    self.encoder: EncoderConfig = dataclasses.replace(self.start.encoder.config, **fields)

  @property
  def pad_id(self) -> int:
    """Returns the id of padding in the checkpoint's vocabulary."""
    return self.start.encoder.vocabulary.special_ids.pad

  @property
  def seeds(self) -> list[int]:
    """Returns the random seeds with which every cell (set of hyperparameters) is trained."""
    of_cells = 1 if self.config.search.cells == "one" else self.protocol.num_seeds
    return list(range(self.config.seed, self.config.seed + (self.config.search.num_seeds or of_cells)))

  @property
  def test_seeds(self) -> list[int]:
    """Returns the seeds of the chosen cell, whose best run predicts the test set; includes `seeds`."""
    count = self.config.search.num_test_seeds or self.protocol.num_test_seeds
    return list(range(self.config.seed, self.config.seed + max(count, len(self.seeds))))

  @property
  def title(self) -> str:
    """Returns the checkpoint's name for the titles of reports."""
    layers = self.config.checkpoint_layers
    notes = [f"its first {layers} layers" if layers > 1 else "its first layer"] if layers else []
    notes += ["its encoder from scratch"] if self.config.from_scratch else []
    return self.config.checkpoint + (f" ({', '.join(notes)})" if notes else "")

  def describe(self, *, used_head: str = "", fresh_head: str = "") -> str:
    """Returns a line about loaded and fresh parameters; see `warm_start.describe`."""
    return f"{self.title}: {warm_start.describe(self.start, used_head=used_head, fresh_head=fresh_head)}"

  @property
  def references(self) -> list[Reference]:
    """Returns the papers' scores for the recipe in `output.compare_with`, or else the checkpoint's."""
    own = self.start.meta["config"].get("recipe", "")
    return glue_metrics.reference_rows(self.config.output.compare_with or own, self.protocol.name)

  def max_length(self, task: str) -> int:
    """Returns the most tokens of an example of a task.

    Raises:
      ConfigError: `data.max_length` exceeds the checkpoint's positions.
    """
    positions = self.start.encoder.config.max_length
    asked = self.config.data.max_length
    if asked > positions:
      raise ConfigError(
        f"data.max_length={asked}: the checkpoint has {positions} positions; use\n"
        f"  --config.data.max_length={positions}"
      )
    return min(asked or protocols.space(self.protocol.name, task, self.size).length, positions)

  def cells(self, task: str) -> list[Cell]:
    """Returns the hyperparameter cells of a task's search: the protocol's, with values from the config.

    Raises:
      ConfigError: a value is out of range, a batch size is not divisible by `train.microbatches`, or no best
        cell is published.
    """
    search, name, microbatches = self.config.search, self.protocol.name, self.config.train.microbatches
    # In the order of the fields of a cell.
    dimensions = ("batch_sizes", "learning_rates", "epochs", "warmup_fractions")
    values = {dimension: search[dimension] for dimension in dimensions if search[dimension]}
    if search.cells != "all":
      is_one, width = search.cells == "one", self.start.encoder.config.hidden_size
      known = protocols.one(width) if is_one else protocols.best_known(name, task, self.size)
      if known is None:
        raise ConfigError(
          f"search.cells='best_known': no best cell is published for this task, protocol {name!r}, "
          f"{self.size} encoders; use one of\n  --config.search.cells=one\n  --config.search.cells=all"
        )
      fixed: dict = {dimension: (value,) for dimension, value in zip(dimensions, known) if value is not None}
      values = fixed | values
    cells = protocols.cells(name, task, self.size, seed=self.config.seed, **values)
    for cell in cells:
      if cell.batch_size % microbatches:
        raise ConfigError(
          f"train.microbatches={microbatches} does not divide the batch size {cell.batch_size} of cell "
          f"{cell.name}; use a divisor of all batch sizes, or set search.batch_sizes"
        )
    return cells

  def plan(
    self,
    name: str,
    problem: Problem,
    metric: str,
    cells: Sequence[Cell],
    train: Examples,
    buckets: Buckets,
    evaluate: Callable[[OutputsOf, Sequence[int]], list[dict[str, float]]],
    *,
    digest: str,
    max_length: int,
    seeds: Sequence[int] = (),
    also: Mapping[str, Any] | None = None,
  ) -> Plan:
    """Returns the plan of a search by the protocol, on one training set for all seeds (default: `seeds`).

    `buckets` sorts the examples of `train`; `digest` covers training and development sets; `also` has more
    entries of the fingerprint. `Plan` documents the other arguments and its error.
    """
    shape_seed, protocol = self.config.seed, self.protocol
    per_epoch = self.config.search.evaluations_per_epoch or protocol.evaluations_per_epoch

    def feed(seeds: Sequence[int], batch_size: int) -> Feed:
      return Feed(train, TrainingOrder(buckets, batch_size, shape_seed), seeds, self.pad_id)

    def evaluation_steps(cell: Cell, steps: int) -> list[int]:
      return protocols.evaluation_steps(steps, cell.epochs or 0, per_epoch)

    of_data = {"data": digest, "max_length": max_length, "padded_lengths": list(buckets.lengths)}
    of_runs = {"optimizer": dict(protocol.optimizer), "head": dict(protocol.head), "shape_seed": shape_seed}
    of_protocol = {"protocol": protocol.name, "evaluations_per_epoch": per_epoch}
    return Plan(
      name,
      problem,
      self.start.init_encoder,
      protocol.optimizer,
      metric,
      cells,
      seeds or self.seeds,
      buckets,
      feed,
      evaluate,
      evaluation_steps,
      self.identity | of_data | of_protocol | of_runs | dict(also or {}),
      summary=protocol.summary,
    )

  @property
  def head(self) -> HeadSettings:
    """Returns the protocol's settings of a classification head."""
    return HeadSettings(**self.protocol.head)

  def runs_at_once(self, program: Program, *, batch_size: int, length: int, num_seeds: int) -> int:
    """Returns the most runs in one program: `train.runs_at_once`, or as many as fit into memory.

    A run's batch has `batch_size` rows of `length` tokens; a cell has `num_seeds` runs.
    """
    train = self.config.train
    if train.runs_at_once:
      return train.runs_at_once
    shapes = jax.eval_shape(self.start.init_encoder, jax.random.key(0))
    tokens = batch_size // train.microbatches * length
    fitting = sharing.runs_that_fit(
      num_parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
      activation_bytes=activation_bytes(self.encoder, tokens=tokens, length=length),
      is_vectorized=program.is_vectorized,
      devices=program.devices,
    )
    # One by one, more cells in a program save no time, and delay results until the last of them has ended.
    return fitting if program.is_vectorized else min(fitting, max(num_seeds, len(program.devices)))

  @property
  def identity(self) -> dict[str, Any]:
    """Returns the JSON values that identify checkpoint, vocabulary and encoder in stored results."""
    encoder = dataclasses.asdict(self.encoder) | {"dtype": str(self.encoder.compute_dtype)}
    return {
      "numbers": NUMBERS,
      "checkpoint": self.start.digest,
      "vocabulary": self.start.encoder.vocabulary.digest,
      "encoder": {name: value for name, value in encoder.items() if name not in _HOW},
    }
