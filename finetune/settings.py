"""Types, choices and limits of the fields in `configs/finetune_base.py`. Imports no jax.

`configs/finetune_base.py` lists the fields with defaults, units and sources. A field that is not listed here
may have any value of its default's type.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from finetune.papers import protocols
from pretrain.embed.schema import POOLINGS
from pretrain.settings.field_types import (
  Count,
  CountOrZero,
  FractionBelowOne,
  Limit,
  NotNegative,
)
from pretrain.settings.model import Dtype, Remat

OWN_TASKS = ("classification", "regression", "multilabel", "tagging", "question_answering", "span_pairs")
# {kind: (module, class)}; each class is a `finetune.search.search.Kind`.
KINDS = {
  "glue": ("finetune.glue.search", "Glue"),
  "squad": ("finetune.squad.search", "Squad"),
  "prompt": ("finetune.prompt.search", "Prompts"),
  "own": ("finetune.own.search", "Own"),
  "embedding": ("finetune.embedding.search", "Embedding"),
}
# {name: the field's type with its limits, or its choices}.
FIELDS: Mapping[str, Any] = {
  "kind": tuple(KINDS),
  "checkpoint_step": Annotated[int, Limit(-1)],
  "checkpoint_layers": CountOrZero,
  "protocol": protocols.NAMES,
  "size": ("auto", *protocols.SIZES),
  "seed": Annotated[int, Limit(0, 2**31 - 1)],
  "model.dtype": Dtype,
  "model.remat": Remat,
  "model.scan_unroll": CountOrZero,
  "search.cells": ("all", "best_known", "one"),
  "search.learning_rates": tuple[float, ...],
  "search.warmup_fractions": tuple[float, ...],
  "search.num_seeds": CountOrZero,
  "search.num_test_seeds": CountOrZero,
  "search.evaluations_per_epoch": CountOrZero,
  "data.max_length": CountOrZero,
  "data.train_rows": CountOrZero,
  "data.buckets": Count,
  "data.bucket_multiple": Count,
  "data.eval_batch_size": Count,
  "data.dev_fraction": Annotated[float, Limit(0, 1, low_open=True, high_open=True)],
  "data.empty": ("refuse", "skip"),
  "data.long": ("cut", "windows"),
  "squad.stride": Count,
  "squad.max_query_length": Count,
  "squad.max_answer_length": Count,
  "squad.n_best": Annotated[int, Limit(2)],  # of one answer, "no answer" would take its place
  "prompt.shots": Count,
  "prompt.max_length": CountOrZero,
  "prompt.num_samples": CountOrZero,
  "prompt.num_steps": Count,
  "prompt.eval_every": Count,
  "own.task": ("auto", *OWN_TASKS),
  "own.pooling": ("cls", "mean", "max"),
  "own.class_weights": ("none", "balanced"),
  "own.label_smoothing": FractionBelowOne,
  "own.targets": ("standard", "largest"),
  "embedding.objective": ("auto", "ranking", "cosent", "cosine", "simcse"),
  "embedding.pooling": ("auto", *POOLINGS),
  "embedding.temperature": Annotated[float, Limit(1e-4, 1e4)],  # beyond, float32 products are not finite
  "embedding.query_length": CountOrZero,
  "embedding.passage_length": CountOrZero,
  "embedding.negatives": CountOrZero,
  "embedding.sizes": tuple[int, ...],
  "embedding.score_range": tuple[float, ...],
  "train.microbatches": Count,
  "train.save_minutes": NotNegative,
}
