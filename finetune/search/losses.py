"""Losses of fine-tuning: sums over rows; the caller divides once, by the rows of the whole batch.

All are computed in float32, for inputs of any dtype. Rows of weight 0 are padding: they give exactly 0 and no
gradient, whatever values they have.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


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
