"""Types, limits and rules of the fields under `optimizer`, `data`, `train` and `mesh`. Imports no jax."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict

from pretrain.settings.fields import (
  Count,
  CountOrZero,
  FractionBelowOne,
  Limit,
  NotNegative,
  Positive,
)
from pretrain.settings.objectives import Contrast, switched_on

WITHOUT_WARMUP = {"batch_size_start": 0, "batch_warmup_steps": 0}  # fields of `train`


@dataclasses.dataclass(frozen=True)
class BatchSizes:
  """The rows of a run's global batches by update; the fields are those of `train`.

  With a warm-up, sizes grow from `batch_size_start` by one microbatch, each for the same number of updates.
  Source: AnswerDotAI/ModernBERT src/sequence_packer.py, where each size takes tokens in proportion to itself.
  """

  batch_size: int  # the largest, of which all arrays are
  microbatches: int = 1
  batch_size_start: int = 0  # 0: `batch_size` always
  batch_warmup_steps: int = 0  # updates before the first of `batch_size` rows

  @property
  def unit(self) -> int:
    """Rows of a microbatch."""
    return self.batch_size // self.microbatches

  @property
  def smaller(self) -> int:
    """Number of sizes below the largest."""
    return (self.batch_size - self.batch_size_start) // self.unit if self.batch_size_start else 0

  @property
  def updates(self) -> int:
    """Updates with each of the smaller sizes; 1 if there are none."""
    return self.batch_warmup_steps // self.smaller if self.smaller else 1

  def rows(self, step: int) -> int:
    """Returns the rows of the batch after `step` updates."""
    return self.batch_size - self.unit * max(self.smaller - step // self.updates, 0)

  def rows_before(self, step: int) -> int:
    """Returns the rows of the first `step` batches together."""
    grown, rest = divmod(min(step, self.updates * self.smaller), self.updates)
    missing = self.updates * (grown * self.smaller - grown * (grown - 1) // 2) + rest * (self.smaller - grown)
    return step * self.batch_size - missing * self.unit

  def shown(self, length: int = 1) -> str:
    """Returns '2,048', or '512 to 2,048 (after 3,000 updates)': rows of a batch, or its rows x `length`."""
    largest = f"{self.batch_size * length:,}"
    if not self.smaller:
      return largest
    return f"{self.batch_size_start * length:,} to {largest} (after {self.batch_warmup_steps:,} updates)"


def batch_sizes(train: Mapping[str, Any]) -> BatchSizes:
  """Returns the sizes of a config's `train`; fields that an older config lacks have their defaults."""
  names = (field.name for field in dataclasses.fields(BatchSizes))
  return BatchSizes(**{name: train[name] for name in names if name in train})


AxisSize = Annotated[int, Limit(-1)]


class MeshSizes(NamedTuple):
  """The number of devices along each axis of a mesh."""

  data: int
  fsdp: int
  tensor: int


@dataclasses.dataclass(frozen=True)
class MeshSettings:
  """Fields under `mesh`: devices per axis; one axis may be -1, which takes all other devices."""

  data: AxisSize = -1
  fsdp: AxisSize = 1
  tensor: AxisSize = 1
  fsdp_across_slices: bool = False

  @property
  def sizes(self) -> MeshSizes:
    """The sizes as the config gives them; an automatic one is -1."""
    return MeshSizes(self.data, self.fsdp, self.tensor)

  def filled(self, number: int) -> MeshSizes | None:
    """Returns the sizes with -1 replaced for `number` devices; None if their product is not `number`."""
    fixed = math.prod(size for size in self.sizes if size != -1)
    filled = MeshSizes(*(number // fixed if size == -1 else size for size in self.sizes))
    return filled if math.prod(filled) == number else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerFields:
  """Fields under `optimizer`: Adam, weight decay, clipping and the learning-rate schedule."""

  learning_rate: Positive
  schedule: Literal["linear", "electra_google", "constant", "wsd"] = "linear"
  warmup_steps: CountOrZero = 0
  decay_steps: CountOrZero = 0
  decay_shape: Literal["linear", "one_minus_sqrt"] = "linear"
  end_learning_rate: NotNegative = 0.0
  adam_b1: FractionBelowOne = 0.9
  adam_b2: FractionBelowOne = 0.98
  adam_eps: Positive = 1e-6
  adam_eps_placement: Literal["uncorrected", "corrected"] = "uncorrected"
  adam_bias_correction: bool = True
  weight_decay: NotNegative = 0.01
  decay: Literal["all", "no_bias_norm"] = "all"
  decay_scale: Literal["rate", "rate_over_peak"] = "rate"
  clip_norm: NotNegative = 0.0
  update_clipping: Literal["none", "stable_adamw"] = "none"
  shard_update: bool = False

  @property
  def decay_factor(self) -> float:
    """The decay of an update, divided by its learning rate."""
    return self.weight_decay / (self.learning_rate if self.decay_scale == "rate_over_peak" else 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFields:
  """Fields under `data`: text, vocabulary and packing; `data.prepare` checks their names and paths."""

  source: str
  feed: Literal["records", "seqio"]
  directory: str
  mixture: str
  temperature: Annotated[float, Limit(0, 100)]
  stages: str
  text_field: str
  module: str
  tfds_directory: str
  clean: str
  vocabulary: str
  vocabulary_kind: Literal["sentencepiece", "wordpiece"]
  vocabulary_cased: bool
  length: Annotated[int, Limit(8)]  # the shortest that data.prepare supports
  packing: Literal["complete", "complete_doc", "none", "eos", "concat", "segments"]
  fraction: Annotated[float, Limit(0, 1, low_open=True)]
  workers: CountOrZero


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFields:
  """Fields under `train`: batch, length of the run, and intervals of logs, evaluations and checkpoints."""

  batch_size: Count
  microbatches: Count
  batch_size_start: CountOrZero
  batch_warmup_steps: CountOrZero
  total_steps: Annotated[int, Limit(1, 2**31 - 1)]  # a step is an int32 number in programs
  init_from: str
  init_grow: Literal["", "tile"]
  log_every: Count
  eval_every: Count
  eval_batches: CountOrZero
  checkpoint_every: Count
  checkpoints_to_keep: Count
  checkpoint_steps: tuple[int, ...]
  max_nonfinite_steps: Count
  spike_zscore: NotNegative
  spike_window: CountOrZero
  spike_roll_back: bool
  trackers: Literal["", "wandb"]  # also the name of its package
  probe_every: CountOrZero
  probe_data: str
  platform: Literal["auto", "cpu", "gpu", "tpu"]
  multihost: bool
  peak_flops: NotNegative


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingSettings:
  """Settings that determine which records a run reads and in which order."""

  data: DataFields
  seed: int
  vocab_size: int  # size of the vocabulary, if the run trains one
  batch_size: int
  sizes: BatchSizes  # of all batches
  total_steps: int
  eval_batches: int  # of held-out blocks; 0: none are read


def reading_settings(config: ConfigDict) -> ReadingSettings:
  """Returns the fields of a config that determine which records are read and in which order."""
  of_train = {name: config.train[name] for name in ("batch_size", "total_steps", "eval_batches")}
  of_run = {"seed": config.seed, "vocab_size": config.model.vocab_size, **of_train}
  return ReadingSettings(data=DataFields(**config.data), sizes=batch_sizes(config.train), **of_run)


def optimizer_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about the optimizer's fields; see `fields.Schema.check`."""
  given, total = config.optimizer, config.train.total_steps
  if given.warmup_steps > total:
    shorter = f"--config.optimizer.warmup_steps={total // 10}"
    yield f"optimizer.warmup_steps train.total_steps: longer than the run; for example\n  {shorter}"
  if given.schedule == "wsd" and given.warmup_steps + given.decay_steps > total:
    names = "optimizer.warmup_steps optimizer.decay_steps train.total_steps"
    yield f"{names}: the warm-up and the decay are longer than the run"
  if given.schedule != "wsd" and (given.decay_steps or given.decay_shape != "linear"):
    names = "optimizer.decay_steps optimizer.decay_shape optimizer.schedule"
    yield f"{names}: the schedule has no such decay\n  --config.optimizer.schedule=wsd"
  is_corrected = given.adam_eps_placement == "corrected" and given.adam_bias_correction
  if given.update_clipping != "none" and not is_corrected:
    names = "optimizer.update_clipping optimizer.adam_eps_placement optimizer.adam_bias_correction"
    corrected = "--config.optimizer.adam_eps_placement=corrected --config.optimizer.adam_bias_correction=true"
    yield f"{names}: StableAdamW has corrected moments\n  {corrected}"
  if given.update_clipping != "none" and given.clip_norm:
    names = "optimizer.update_clipping optimizer.clip_norm"
    yield f"{names}: gradients would be clipped twice\n  --config.optimizer.clip_norm=0"
  if given.end_learning_rate > given.learning_rate:
    yield "optimizer.end_learning_rate optimizer.learning_rate: the final rate is above the peak"


def train_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about the fields under `train`, and that there is a text."""
  train, data = config.train, config.data
  if any(not 1 <= step <= train.total_steps for step in train.checkpoint_steps):
    yield f"train.checkpoint_steps train.total_steps: expected steps from 1 to {train.total_steps}"
  if train.spike_roll_back and not train.spike_zscore:
    yield "train.spike_roll_back train.spike_zscore: not detected\n  --config.train.spike_zscore=8"
  if train.init_grow and not train.init_from:
    yield "train.init_grow train.init_from: no model to grow\n  --config.train.init_from=DIR"
  if train.probe_every and not train.probe_data:
    yield "train.probe_every train.probe_data: give a folder of annotated data to probe with"
  if not (data.source or data.directory or data.mixture or data.stages):
    yield "data.source data.directory: no text\n  --config.data.source=installed_docs"
  yield from _batch_warmup_rules(config)


def _batch_warmup_rules(config: ConfigDict) -> Iterator[str]:
  """Yields why batches cannot grow from the first size to the last in equal numbers of updates."""
  sizes, total = batch_sizes(config.train), config.train.total_steps
  start, warmup, unit = sizes.batch_size_start, sizes.batch_warmup_steps, sizes.unit
  both = "train.batch_size_start train.batch_warmup_steps"
  if bool(start) != bool(warmup):
    yield f"{both}: a warm-up of the batch size needs both; set both or neither"
  if not (start and warmup) or sizes.batch_size % sizes.microbatches:
    return  # `device_rules` refuse the latter
  if start >= sizes.batch_size or start % unit:
    names = "train.batch_size_start train.batch_size train.microbatches"
    yield f"{names}: expected whole microbatches of {unit} rows, fewer than {sizes.microbatches}"
  for_example = "for example\n  --config.train.batch_warmup_steps="
  if warmup % sizes.smaller:
    near = math.ceil(warmup / sizes.smaller) * sizes.smaller
    yield f"{both}: the {sizes.smaller} smaller sizes need equal numbers of updates, {for_example}{near}"
  if warmup >= total:
    near = max(1, total // 10 // sizes.smaller) * sizes.smaller
    yield f"train.batch_warmup_steps train.total_steps: longer than the run; {for_example}{near}"
  if config.data.feed == "seqio":
    yield f"{both} data.feed: a feed has batches of one size\n  --config.data.feed=records"


def device_rules(config: ConfigDict, num_devices: int | None) -> Iterator[str]:
  """Yields each size that does not fit the mesh; `num_devices` (all hosts) may be unknown."""
  mesh = MeshSettings(**config.mesh)
  names = "mesh.data mesh.fsdp mesh.tensor"
  if 0 in mesh.sizes or mesh.sizes.count(-1) > 1:
    yield f"{names}: expected sizes of at least 1, and -1 (all other devices) at most once"
  # While the number of devices is unknown, an axis of -1 may have one.
  known = num_devices or math.prod(size for size in mesh.sizes if size != -1)
  sizes = mesh.filled(known)
  if sizes is None:
    yield f"{names}: the product must be the number of devices, {num_devices}; use -1 for one of them"
    return
  cut = [("num_heads", "tensor"), ("mlp_size", "tensor"), ("hidden_size", "fsdp")]
  own = [("num_kv_heads", "tensor"), ("embedding_size", "fsdp")]  # of the encoder alone
  for group in ("model", "generator") if config.corruption.kind == "generator" else ("model",):
    for name, axis in cut + own * (
      group == "model"
    ):  # `sharding.MAY_STAY_WHOLE` has the sizes that need not be divisible
      if config[group][name] % getattr(sizes, axis):
        yield f"{group}.{name} mesh.{axis}: not divisible by {getattr(sizes, axis)} devices, which shard it"
  shards, batch, microbatches = sizes.data * sizes.fsdp, config.train.batch_size, config.train.microbatches
  groups = {
    f"objectives.{name}.group_size": objective.group_size
    for name, objective in switched_on(config.objectives.to_dict()).items()
    if isinstance(objective, Contrast) and objective.group_size > 1
  }
  unit = math.lcm(shards, *groups.values()) * microbatches
  if batch % unit:
    below, above = batch // unit * unit, (batch // unit + 1) * unit
    names = " ".join(["train.batch_size", "train.microbatches", *groups])
    near = f"{below} or {above}" if below else f"{above}"
    yield f"{names}: on {shards} devices along data and fsdp expected a multiple of {unit}; use {near}"
