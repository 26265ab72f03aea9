"""A session: checkpoint, protocol and seeds of a fine-tuning command, and the plans of its searches."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from data.errors import ConfigError, counted
from finetune.papers import glue_metrics, protocols
from finetune.papers.glue_metrics import Reference
from finetune.papers.protocols import Cell
from finetune.search.examples import Buckets, Examples, TrainingOrder, pad
from finetune.search.problem import Batch, HeadSettings, OutputsOf, Problem
from finetune.search.train import Hyper, Schedule
from pretrain.checkpoints.saved_model import OpenedEncoder, open_model
from pretrain.mesh import trees
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import EncoderConfig
from pretrain.stop import StopRequest

_HOW = ("attention", "remat", "scan_unroll")  # fields that change speed and memory, not the results


@dataclasses.dataclass(frozen=True)
class Plan:
  """Plan of a search: trains each cell (set of hyperparameters) with each seed, chooses the best run."""

  name: str  # of its folder in the workdir
  problem: Problem
  init_encoder: Callable[[jax.Array], dict]  # key to the encoder's parameters that every run starts from
  optimizer: Mapping[str, Any]  # fields of `pretrain.optim.OptimizerSettings` but for learning rate and steps
  metric: str  # by which runs and cells are compared
  cells: Sequence[Cell]  # in the order of the search
  seeds: Sequence[int]  # of the runs of a cell
  buckets: Buckets  # padded lengths of a training set, and how many examples each has
  # (seed, batch size) to a function from a step, the first is 0, to its batch [batch, ...].
  feed: Callable[[int, int], Callable[[int], Batch]]
  # (outputs, seed) to {metric: fraction} on the run's development set.
  evaluate: Callable[[OutputsOf, int], dict[str, float]]
  # (cell, steps of an epoch) to the steps after which its runs are evaluated; the last ends them.
  evaluation_steps: Callable[[Cell, int], Sequence[int]]
  fingerprint: Mapping[str, Any]  # what decides a run's numbers besides cell and seed; see `Results`
  # {seed: further fields of the fingerprint} if each seed has its own data, as the splits of prompts: then a
  # cell is chosen for each seed separately.
  of_seeds: Mapping[int, Mapping[str, Any]] | None = None
  summary: str = "mean"  # or 'median': over the seeds of a cell, by which a cell is chosen

  def __post_init__(self) -> None:
    """Checks that every cell's warm-up is shorter than its runs; ConfigError if it is not."""
    for cell in self.cells:
      self.hyper(cell, 0)

  @property
  def by_seed(self) -> bool:
    """Whether a cell is chosen for each seed separately."""
    return self.of_seeds is not None

  @property
  def seed_name(self) -> str:
    """Returns the user's word for a seed: 'split' if each seed has its own data, else 'seed'."""
    return "split" if self.by_seed else "seed"

  def schedule(self, cell: Cell) -> Schedule:
    """Returns the steps at which the runs of a cell are evaluated, and at which they end."""
    per_epoch = sum(self.buckets.num_batches(cell.batch_size))
    return Schedule(cell.total_steps(per_epoch), tuple(self.evaluation_steps(cell, per_epoch)), per_epoch)

  def hyper(self, cell: Cell, seed: int) -> Hyper:
    """Returns the arguments of a run's compiled functions."""
    steps = cell.total_steps(sum(self.buckets.num_batches(cell.batch_size)))
    return Hyper(seed, cell.learning_rate, steps, protocols.warmup_steps(cell, steps))

  def describe(self) -> str:
    """Returns a line about the size of the search and the number of compiled shapes."""
    batch_sizes = {cell.batch_size for cell in self.cells}
    steps = sum(self.schedule(cell).num_steps for cell in self.cells) * len(self.seeds)
    most = len(self.buckets.lengths) * len(batch_sizes)
    counts = f"{counted(len(self.cells), 'cell')} x {counted(len(self.seeds), self.seed_name)}"
    shapes = f"compiles at most {counted(most, 'shape')} of a step"
    return f"{self.name}: {counts}, {counted(steps, 'step')} of all runs; {shapes}"


@dataclasses.dataclass(frozen=True)
class WarmStart:
  """A pretraining checkpoint opened for fine-tuning: its encoder, vocabulary, heads and metadata."""

  directory: str  # that has its `checkpoints`
  encoder: OpenedEncoder  # the session replaces the fields of `config.model` in its config
  heads: dict  # heads of pretraining, {'rtd': {...}, ...}
  meta: Mapping[str, Any]
  digest: str  # sha256 over the encoder's and the heads' arrays; 'from scratch' for a fresh encoder
  init_encoder: Callable[[jax.Array], dict]  # key to the encoder's parameters: the loaded ones, or fresh ones


def load_start(
  directory: str,
  *,
  step: int | None = None,
  vocabulary_directory: str = "",
  from_scratch: bool = False,
  layers: int = 0,
) -> WarmStart:
  """Reads a checkpoint; nothing is put on a device.

  Args:
    directory: a pretraining workdir, the output of `pretrain.export import`, or the directory of a step.
    step: number of the checkpoint; None: the newest.
    vocabulary_directory: '': beside the checkpoint, else beside the run's records.
    from_scratch: whether only the encoder's sizes and the vocabulary are taken from the checkpoint.
    layers: number of the encoder's first layers to keep; 0: all.

  Raises:
    ConfigError: the encoder has fewer layers.
    DataError: checkpoint or vocabulary is missing, the vocabulary is not the checkpoint's, it has more pieces
      than rows, or the parameters do not match the config.
  """
  saved = open_model(directory, step)
  encoder = saved.open_encoder(vocabulary_directory, flag="--config.vocabulary")
  heads, pad_id, meta = saved.params.get("heads", {}), encoder.vocabulary.special_ids.pad, saved.meta
  if layers:
    if layers > encoder.config.num_layers:
      raise ConfigError(
        f"checkpoint_layers={layers}: the encoder has {encoder.config.num_layers} layers; use\n"
        f"  --config.checkpoint_layers={encoder.config.num_layers}"
      )
    encoder = encoder.first_layers(layers)
    model = {**meta["config"]["model"], "num_layers": layers}
    meta = {**meta, "config": {**meta["config"], "model": model}}
  if from_scratch:
    init = functools.partial(init_encoder, config=encoder.config, pad_id=pad_id)
    return WarmStart(str(saved.workdir), encoder, heads, meta, "from scratch", init)
  digest = trees.digest({"encoder": encoder.params, "heads": heads})
  return WarmStart(str(saved.workdir), encoder, heads, meta, digest, lambda key: encoder.params)


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
    self.start = load_start(
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
    """Returns a line about loaded, fresh and unused parameters; '' as the name of a head means none."""
    start, is_fresh = self.start, self.config.from_scratch
    named = {f"heads/{used_head}"} if used_head else set()
    left = sorted({f"heads/{name}" for name in start.heads} - named)
    left += ["generator"] if start.meta["config"].get("corruption", {}).get("kind") == "generator" else []
    fresh = [*(["encoder"] if is_fresh else []), *([f"heads/{fresh_head}"] if fresh_head else [])]
    loaded = [*([] if is_fresh else ["encoder"]), *sorted(named)]
    return (
      f"{self.title}: loaded {', '.join(loaded) or 'nothing'}; fresh: "
      f"{', '.join([*fresh, 'optimizer', 'step'])}; unused: {', '.join(left) or 'nothing'} "
      f"(pretraining step {start.meta.get('step', 0):,})"
    )

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
    evaluate: Callable[[OutputsOf, int], dict[str, float]],
    *,
    digest: str,
    max_length: int,
    also: Mapping[str, Any] | None = None,
  ) -> Plan:
    """Returns the plan of a search by the protocol, on one training set for all seeds.

    `buckets` sorts the examples of `train`; `digest` covers training and development sets; `also` has more
    entries of the fingerprint. `Plan` documents the other arguments and its error.
    """
    shape_seed, protocol = self.config.seed, self.protocol
    per_epoch = self.config.search.evaluations_per_epoch or protocol.evaluations_per_epoch

    def feed(seed: int, batch_size: int) -> Callable[[int], Batch]:
      order = TrainingOrder(buckets, batch_size, shape_seed)

      def batch(step: int) -> Batch:
        length, rows = order.batch(seed, step)
        return pad(train, rows, length=length, batch_size=batch_size, pad_id=self.pad_id)

      return batch

    def evaluation_steps(cell: Cell, steps: int) -> list[int]:
      return protocols.evaluation_steps(steps, cell.epochs or 0, per_epoch)

    of_data = {"data": digest, "max_length": max_length, "padded_lengths": list(buckets.lengths)}
    of_runs = {"optimizer": dict(protocol.optimizer), "head": vars(self.head), "shape_seed": shape_seed}
    of_protocol = {"protocol": protocol.name, "evaluations_per_epoch": per_epoch}
    return Plan(
      name,
      problem,
      self.start.init_encoder,
      protocol.optimizer,
      metric,
      cells,
      self.seeds,
      buckets,
      feed,
      evaluate,
      evaluation_steps,
      self.identity | of_data | of_protocol | of_runs | dict(also or {}),
      summary=protocol.summary,
    )

  @property
  def head(self) -> HeadSettings:
    """Returns the protocol's settings of a classification head; DeBERTa's has its own activation."""
    head = HeadSettings(**self.protocol.head)
    if self.encoder.relative_position == "disentangled":  # as DeBERTa's class of transformers has it
      return dataclasses.replace(head, activation="gelu")
    return head

  def devices(self, cells: Sequence[Cell]) -> list[jax.Device]:
    """Returns the devices that share the rows of a batch: the most whose number divides all batches."""
    sizes = {cell.batch_size // self.config.train.microbatches for cell in cells}
    sizes.add(self.config.data.eval_batch_size)
    devices = jax.local_devices()
    counts = range(1, len(devices) + 1)
    return devices[: max(count for count in counts if not any(size % count for size in sizes))]

  @property
  def identity(self) -> dict[str, Any]:
    """Returns the JSON values that identify checkpoint, vocabulary and encoder in stored results."""
    encoder = dataclasses.asdict(self.encoder) | {"dtype": str(self.encoder.compute_dtype)}
    return {
      "checkpoint": self.start.digest,
      "vocabulary": self.start.encoder.vocabulary.digest,
      "encoder": {name: value for name, value in encoder.items() if name not in _HOW},
    }
