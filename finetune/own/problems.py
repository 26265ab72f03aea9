"""Builds the head and the loss for each kind of task on a user's file."""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from finetune.own import spans, tagging
from finetune.own.schema import TaskSchema
from finetune.search import losses
from finetune.search.classification import HeadSettings, make_problem
from finetune.search.program import Batch, Problem
from pretrain.models import heads
from pretrain.models.encoder import encode
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import pool
from pretrain.step import Metrics


def problem(
  schema: TaskSchema,
  config: EncoderConfig,
  head: HeadSettings,
  *,
  pad_id: int,
  targets: np.ndarray | Sequence[np.ndarray] = (),
  balanced: bool = False,
  smoothing: float = 0.0,
) -> Problem:
  """Builds the training problem (head, outputs and loss) for a schema's kind of task.

  Args:
    targets: of the training rows, from which the loss takes the frequencies of classes and words.
    balanced: whether classes are weighted by their inverse frequency.
    smoothing: share of the target that is spread over all classes.
  """
  options = {"class_weights": _class_weights(schema, targets) if balanced else (), "smoothing": smoothing}
  if schema.kind == "tagging":
    return _tagging(schema, config, head, pad_id=pad_id, targets=targets, **options)
  make = functools.partial(make_problem, config, head, num_outputs=schema.num_outputs, pad_id=pad_id)
  if schema.kind == "span_pairs":  # the head reads the means over two spans, concatenated
    return make(
      loss=functools.partial(losses.classification_loss, **options),
      name="span_pairs",
      pooling=vectors_of_spans,
      num_vectors=2,
    )
  loss = {
    "classification": functools.partial(losses.classification_loss, **options),
    "multilabel": functools.partial(losses.multilabel_loss, **options),
    "regression": losses.regression_loss,
  }[schema.kind]
  return make(loss=loss, pooling=schema.pooling)


def _tagging(
  schema: TaskSchema,
  config: EncoderConfig,
  head: HeadSettings,
  *,
  pad_id: int,
  targets: np.ndarray | Sequence[np.ndarray],
  class_weights: Sequence[float],
  smoothing: float,
) -> Problem:
  """Builds the training problem of tagging words; its outputs are [batch, length, labels].

  A sentence's loss is the sum over its words, divided by the mean number of words of the training set. So the
  loss of a batch is about the mean over words, and a sentence's part does not depend on the others.
  """

  def init_heads(key: jax.Array) -> dict:
    return {"tagging": heads.init_tagging_head(key, config, num_outputs=len(schema.labels))}

  def outputs(params: dict, batch: Batch, row_keys: jax.Array | None) -> jax.Array:
    ids = batch["ids"]
    _, hidden = encode(params["encoder"], config, ids, ids != pad_id, pad_id=pad_id, row_keys=row_keys)
    own = params["heads"]["tagging"]
    return heads.apply_tagging_head(own, hidden.last, dropout=head.dropout, row_keys=row_keys, config=config)

  def loss(logits: jax.Array, batch: Batch) -> tuple[jax.Array, Metrics]:
    weights = batch["weights"][:, None] * (batch[tagging.WORD] > 0)
    total = losses.classification_loss(
      logits.reshape(-1, logits.shape[-1]),
      batch["labels"].reshape(-1),
      weights.reshape(-1),
      class_weights=class_weights,
      smoothing=smoothing,
    )
    mean_words = float(np.mean([len(of_row) for of_row in targets]))
    return total / mean_words, {"task_loss": (total, jnp.sum(weights))}

  return Problem(init_heads, outputs, loss)


def vectors_of_spans(hidden: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns the means of [batch, length, embed] over the tokens of both spans: [batch, 2 * embed] float32.

  `batch` has the token field `spans.SPAN`, [batch, length] int; a span without a token gives 0.
  """
  return jnp.concatenate(
    [pool(hidden, (batch[spans.SPAN] & of) > 0, "mean") for of in (spans.FIRST, spans.SECOND)], axis=-1
  )


def _class_weights(schema: TaskSchema, targets: np.ndarray | Sequence[np.ndarray]) -> tuple[float, ...]:
  """Returns the weight of each class in the loss, inverse to its frequency."""
  wanted = np.concatenate(targets) if isinstance(targets, list) else np.asarray(targets)
  if wanted.ndim == 1:  # the mean weight over the training rows is 1
    counts = np.bincount(wanted, minlength=len(schema.labels))
    return tuple(float(len(wanted) / (np.count_nonzero(counts) * max(count, 1))) for count in counts)
  there = wanted.sum(axis=0)  # rows with a label weigh as much as the rows without it
  return tuple(float((len(wanted) - count) / max(count, 1)) or 1.0 for count in there)
