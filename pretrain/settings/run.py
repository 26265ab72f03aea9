"""Types, choices and limits of the fields under `optimizer`, `data`, `train` and `mesh`. Imports no jax."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict

from pretrain.settings.field_types import (
  Count,
  CountOrZero,
  FractionBelowOne,
  Limit,
  NotNegative,
  Positive,
)

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


def nearest_sizes(
  asked: MeshSizes, number: int, *, can: Callable[[MeshSizes], bool] = lambda _: True
) -> MeshSizes | None:
  """Returns the mesh sizes of `number` devices closest to `asked` for which `can` is true, or None.

  The distance is the number of doublings and halvings. A size of -1 in `asked` matches any size.
  """
  for sizes in sorted(_layouts(number), key=lambda sizes: _distance(asked, sizes)):
    if can(sizes):
      return sizes
  return None


def _layouts(number: int) -> Iterator[MeshSizes]:
  divisors = [size for size in range(1, number + 1) if number % size == 0]
  for tensor in divisors:
    for fsdp in divisors:
      if number % (tensor * fsdp) == 0:
        yield MeshSizes(number // (tensor * fsdp), fsdp, tensor)


def _distance(asked: MeshSizes, sizes: MeshSizes) -> tuple[float, ...]:
  """Returns a sort key: doublings between the sizes, then the smaller tensor axis, then the smaller fsdp."""
  apart = sum(abs(math.log2(found / wanted)) for wanted, found in zip(asked, sizes) if wanted > 0)
  return round(apart, 6), sizes.tensor, sizes.fsdp


def shown_sizes(sizes: MeshSizes) -> str:
  """Returns the flags that set these mesh sizes."""
  return " ".join(f"--config.mesh.{axis}={size}" for axis, size in sizes._asdict().items())


TRACKERS = ("wandb",)  # also the names of their packages


def tracker_names(asked: str) -> list[str]:
  """Parses the comma-separated names in `train.trackers`; removes duplicates."""
  return list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))


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
  trackers: str
  probe_every: CountOrZero
  probe_data: str
  replica_check_every: CountOrZero
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
