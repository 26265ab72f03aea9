"""Types, choices and limits of the fields under `optimizer`, `data` and `train`. Imports no jax."""

import dataclasses
from typing import Annotated, Literal

from ml_collections import ConfigDict

from pretrain.settings.batch_sizes import BatchSizes, batch_sizes
from pretrain.settings.field_types import (
  Count,
  CountOrZero,
  FractionBelowOne,
  Limit,
  NotNegative,
  Positive,
)


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
