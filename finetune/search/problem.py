"""A task as a training problem: heads, outputs and loss; classification and regression of texts.

Losses are sums over rows, in float32 for inputs of any dtype; the step divides once, by the rows of the whole
batch. Rows of weight 0 are padding: they give exactly 0 and no gradient, whatever values they have.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pretrain.embed.vectors import Pooling, pooled
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.step import Metrics

ArrayTree = Any
Batch = dict[str, Any]  # of `examples.pad`: 'ids', 'weights' and the task's fields
OutputsOf = Callable[[Batch], Any]  # host batch [batch, ...] to host outputs [batch, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
  """The parts that a task adds to an encoder: heads, outputs and loss."""

  init_heads: Callable[[jax.Array], dict]  # key to {'classification': {...}, ...} float32
  # ({'encoder', 'heads'}, batch, [batch] row keys or None without dropout) to [batch, ...] float32
  outputs: Callable[[dict, Batch, jax.Array | None], ArrayTree]
  # (outputs, batch) to ([] sum over rows, {name: (sum, weight)}); rows of weight 0 give 0
  loss: Callable[[ArrayTree, Batch], tuple[jax.Array, Metrics]]
  # batch to a tree of [rows] int32, the numbers by which dropout is drawn; `outputs` gets keys in this tree
  rows: Callable[[Batch], ArrayTree] = lambda batch: jnp.arange(batch["ids"].shape[0])
  # Whether the loss compares rows of a batch: then `outputs` divides a batch into microbatches.
  compares_rows: bool = False


def _cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the cross-entropy summed over rows in nats, [] float32; logits are -inf for forbidden classes."""
  is_counted = weights > 0
  logits = jnp.where(is_counted[:, None], logits.astype(jnp.float32), 0.0)
  # JAX reads index -1, and any index that is too large, as the last class: neither may count as a label.
  is_class = (targets >= 0) & (targets < logits.shape[-1])
  index = jnp.where(is_class, targets, 0)[:, None]
  log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), index, axis=-1)[:, 0]
  per_row = jnp.where(is_class, -log_probs, jnp.nan)
  return jnp.sum(jnp.where(is_counted, per_row * weights, 0.0))


def classification_loss(
  logits: jax.Array,
  labels: jax.Array,
  weights: jax.Array,
  *,
  class_weights: Sequence[float] = (),
  smoothing: float = 0.0,
) -> jax.Array:
  """Returns the cross-entropy of the true class, [] float32, sum in nats, from [batch, classes] float logits.

  Labels are [batch] int32 in [0, classes); any other gives NaN, and the step skips that update. A row is
  weighted by `class_weights` of its class. `smoothing` is the share of the target spread over all classes.

  Source: COCO-LM fairseq/criterions/sentence_prediction.py; Szegedy et al. 2016, section 7 (smoothing).
  """
  if class_weights:
    table = jnp.asarray(class_weights, jnp.float32)
    weights = weights * table[jnp.clip(labels, 0, len(class_weights) - 1)]
  total = _cross_entropy(logits, labels, weights)
  if not smoothing:
    return total
  log_probs = jax.nn.log_softmax(jnp.where(weights[:, None] > 0, logits.astype(jnp.float32), 0.0), axis=-1)
  return (1 - smoothing) * total - smoothing * jnp.sum(jnp.mean(log_probs, axis=-1) * weights)


def multilabel_loss(
  logits: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  *,
  class_weights: Sequence[float] = (),
  smoothing: float = 0.0,
) -> jax.Array:
  """Returns the binary cross-entropy, mean over labels, sum in nats over rows of [batch, labels] logits.

  Targets are [batch, labels] 0 or 1. A label with target 1 is weighted by `class_weights`, one with target 0
  by 1. `smoothing` moves each target by that share towards one half.

  Source: PyTorch's BCEWithLogitsLoss, which transformers uses for multi_label_classification.
  """
  is_counted = weights[:, None] > 0
  logits = jnp.where(is_counted, logits.astype(jnp.float32), 0.0)
  positive = jnp.asarray(class_weights, jnp.float32) if class_weights else 1.0
  of_target = jnp.where(targets > 0, positive, 1.0)  # of a target, not of its smoothed share
  targets = (1 - smoothing) * targets.astype(jnp.float32) + smoothing / 2
  costs = -targets * jax.nn.log_sigmoid(logits) - (1 - targets) * jax.nn.log_sigmoid(-logits)
  costs *= of_target
  return jnp.sum(jnp.where(is_counted, costs, 0.0).mean(axis=-1) * weights)


def regression_loss(predictions: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns the squared error, [] float32 sum, of [batch, 1] float predictions.

  Targets are [batch] float, in the task's scale (STS-B: 0-1 in fairseq, 0-5 in Hugging Face).

  Source: COCO-LM fairseq/criterions/sentence_prediction.py, `regression_target`.
  """
  error = predictions[:, 0].astype(jnp.float32) - targets.astype(jnp.float32)
  return jnp.sum(jnp.square(jnp.where(weights > 0, error, 0.0)) * weights)


def answer_span_loss(
  start_logits: jax.Array, end_logits: jax.Array, starts: jax.Array, ends: jax.Array, weights: jax.Array
) -> jax.Array:
  """Returns the mean of the start's and the end's cross-entropy, [] float32, sum in nats over windows.

  Logits are [windows, length] float, -inf where no answer may start or end. Starts and ends are [windows]
  int32 positions; 0, the position of [CLS], if the window has no answer. A position that is not allowed gives
  infinity, one outside the window NaN; the step skips both updates.

  Source: COCO-LM fairseq/models/squad/squad_head.py.
  """
  return 0.5 * (_cross_entropy(start_logits, starts, weights) + _cross_entropy(end_logits, ends, weights))


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
  function = loss or (regression_loss if num_outputs == 1 else classification_loss)

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
