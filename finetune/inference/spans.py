"""Rows whose targets, spans of words, get a label each."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from data.rows import Row
from finetune.own import spans, tagging
from finetune.own.chances import PREDICTED, PROBABILITY
from finetune.own.problems import vectors_of_spans
from finetune.own.schema import TaskSchema
from finetune.own.spans import SpanInputs
from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.embed.vectors import pooled
from pretrain.export.task_fields import activation
from pretrain.inference.batches import Input
from pretrain.models import heads


class Spans:
  """A `model.Kind`: a label for every target."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """`task` is what the model's meta says of its task."""
    self.schema, self._encoder = schema, encoder
    self._activation = activation(task)
    self.cut = 0  # rows that lost words

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], SpanInputs]:
    """Ids and marks of every target."""
    made = spans.inputs(rows, self.schema, self._encoder.vocabulary)
    self.cut += made.cut
    marks = made.examples.token_fields[spans.SPAN]
    return [{"ids": ids, spans.SPAN: mark} for ids, mark in zip(made.examples.ids, marks)], made

  def compute(self, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """[batch, labels] float32."""
    config, pad_id = self._encoder.config, self._encoder.vocabulary.special_ids.pad
    vectors = pooled(params["encoder"], config, batch, pad_id=pad_id, pooling=vectors_of_spans)
    return heads.apply_classification_head(
      params["heads"]["span_pairs"], vectors, activation=self._activation
    )

  def outputs(self, rows: Sequence[Row], found: Sequence[Any], made: SpanInputs) -> list[np.ndarray]:
    """[targets, labels] float32 of every row."""
    return spans.join(made, np.reshape(np.asarray(found, np.float32), (-1, self.schema.num_outputs)))

  def answers(self, outputs: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Labels with their probabilities."""
    return tagging.answers(self.schema, outputs)

  def columns(self) -> dict[str, str]:
    """The columns of `answers`, with their types."""
    return {PREDICTED: "list of string", PROBABILITY: "list of float64"}
