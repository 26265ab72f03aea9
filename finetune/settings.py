"""What every field of `configs/finetune_base.py` may be: its type, choices and limits. Imports no jax.

`configs/finetune_base.py` has their defaults, units and sources; a test holds both equal.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from finetune.papers import protocols
from pretrain.settings.field_types import Count, CountOrZero, FractionBelowOne, Limit, NotNegative
from pretrain.settings.model import Dtype, Remat

OwnTask = Literal[
  "auto", "classification", "regression", "multilabel", "tagging", "question_answering", "span_pairs"
]
OWN_TASKS: tuple[str, ...] = get_args(OwnTask)[1:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFields:
  """What fine-tuning may change of the checkpoint's encoder."""

  dropout: float  # a rate, or -1; a rule of `finetune.validate`
  dtype: Dtype
  remat: Remat
  scan_unroll: CountOrZero


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchFields:
  """Cells and seeds, where they are not the protocol's."""

  cells: Literal["all", "best_known", "one"]
  batch_sizes: tuple[int, ...]
  learning_rates: tuple[float, ...]
  epochs: tuple[int, ...]
  warmup_fractions: tuple[float, ...]
  warmup_steps: tuple[int, ...]
  num_seeds: CountOrZero
  num_test_seeds: CountOrZero
  evaluations_per_epoch: CountOrZero


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFields:
  """Files and their columns, how many rows, and how they are padded."""

  directory: str
  max_length: CountOrZero
  train_rows: CountOrZero
  fractions: tuple[float, ...]
  buckets: Count
  bucket_multiple: Count
  eval_batch_size: Count
  train_file: str
  dev_file: str
  module: str
  dev_fraction: Annotated[float, Limit(0, 1, low_open=True, high_open=True)]
  text: str
  text_pair: str
  label: str
  labels: str
  separator: str
  empty: Literal["refuse", "skip"]
  long: Literal["cut", "windows"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFields:
  """Files of SQuAD, its windows and its answers."""

  train_file: str
  dev_file: str
  stride: Count
  max_query_length: Count
  max_answer_length: Count
  n_best: Count
  mask_query: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptFields:
  """Draws, demonstrations and search of LM-BFF."""

  shots: Count
  splits: tuple[int, ...]
  directory: str
  words: str
  max_length: CountOrZero
  num_samples: CountOrZero
  num_steps: Count
  eval_every: Count
  batch_sizes: tuple[int, ...]
  learning_rates: tuple[float, ...]
  test_rows: CountOrZero


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFields:
  """What a user's own file asks, and how it is learned."""

  task: OwnTask
  pooling: Literal["cls", "mean", "max"]
  class_weights: Literal["none", "balanced"]
  label_smoothing: FractionBelowOne
  targets: Literal["standard", "largest"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFields:
  """How runs share programs and devices, and when their state is saved."""

  runs_at_once: CountOrZero
  mapping: Literal["auto", "vectorized", "one_by_one"]
  microbatches: Count
  save_minutes: NotNegative


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputFields:
  """What is kept of a search besides its results."""

  save_model: bool
  predict: bool
  compare_with: str


# The kinds: the module and class of each, a `finetune.search.driver.Kind`.
KINDS = {
  "glue": ("finetune.glue.search", "Glue"),
  "squad": ("finetune.squad.search", "Squad"),
  "prompt": ("finetune.prompt.search", "Prompts"),
  "own": ("finetune.own.search", "Own"),
}
# Name: the field's type, its choices, or the group's type.
FIELDS: Mapping[str, Any] = {
  "recipe": str,
  "kind": tuple(KINDS),
  "checkpoint": str,
  "checkpoint_step": Annotated[int, Limit(-1)],
  "vocabulary": str,
  "from_scratch": bool,
  "protocol": protocols.NAMES,
  "size": ("auto", *protocols.SIZES),
  "tasks": str,
  "seed": Annotated[int, Limit(0, 2**31 - 1)],
  "model": ModelFields,
  "search": SearchFields,
  "data": DataFields,
  "squad": SquadFields,
  "prompt": PromptFields,
  "own": OwnFields,
  "train": TrainFields,
  "output": OutputFields,
}
