"""Text classification and regression as a `Problem`: a head on the vector of a text, usually of [CLS]."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from finetune.search import losses
from finetune.search.program import Batch, Problem
from pretrain.embed.vectors import Pooling, pooled
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.step import Metrics

# (outputs, labels, weights) to [] sum over rows
Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class HeadSettings:
  """Activation, initialisation and dropout of a classification head; the papers' values: `Protocol.head`."""

  activation: str = "tanh"
  init: str = "normal"
  dropout: float = 0.1
  input_dropout: float = 0.1


def make_problem(
  config: EncoderConfig,
  settings: HeadSettings,
  *,
  num_outputs: int,
  pad_id: int,
  pooling: Pooling = "cls",
  loss: Loss | None = None,
  name: str = "classification",
  num_vectors: int = 1,
) -> Problem:
  """Builds the training problem of a task on texts, with outputs [batch, num_outputs] float32.

  Batches have 'labels' [batch]: int32 classes, or float32 targets of a regression if `num_outputs` is 1. A
  `loss` may read other labels. `pooling` gives `num_vectors` concatenated vectors; `name` names the head.
  """
  function = loss or (losses.regression_loss if num_outputs == 1 else losses.classification_loss)

  def init_heads(key: jax.Array) -> dict:
    head = heads.init_classification_head(
      key, config, num_outputs=num_outputs, init=settings.init, num_vectors=num_vectors
    )
    return {name: head}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> jax.Array:
    vectors = pooled(params["encoder"], config, batch, pad_id=pad_id, pooling=pooling, row_keys=row_keys)
    return heads.apply_classification_head(
      params["heads"][name],
      vectors,
      activation=settings.activation,
      dropout=settings.dropout,
      input_dropout=settings.input_dropout,
      row_keys=row_keys,
      config=config,
    )

  def loss_of(logits: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    total = function(logits, batch["labels"], batch["weights"])
    return total, {"task_loss": (total, jnp.sum(batch["weights"]))}

  return Problem(init_heads, outputs, loss_of)


def exported_task(name: str, labels: Sequence[str], settings: HeadSettings) -> dict[str, Any]:
  """Returns the description of a task that an export needs, as JSON values; no labels: a regression."""
  return {
    "name": name,
    "labels": list(labels) or None,
    "problem_type": "single_label_classification" if labels else "regression",
    "activation": settings.activation,
  }
