"""Rows whose text, or pair of texts, gets labels or a number from a head on the text's vector."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from data.rows import Row
from finetune.own import answers
from finetune.own.answers import Inputs
from finetune.own.schema import TaskSchema
from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.embed.vectors import pooled
from pretrain.export.task_fields import activation
from pretrain.inference.batches import Input
from pretrain.models import heads


class Texts:
  """A `model.Kind`: classification, several labels, regression."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """`task` is what the model's meta says of its task."""
    self.schema, self._encoder = schema, encoder
    self._activation = activation(task)
    self.cut = 0  # rows that lost tokens

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], Inputs]:
    """Ids of the texts, one or several windows for each row."""
    made = answers.inputs(rows, self.schema, self._encoder.vocabulary)
    self.cut += made.cut
    return [{"ids": ids} for ids in made.examples.ids], made

  def compute(self, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """[batch, outputs] float32."""
    config, pad_id = self._encoder.config, self._encoder.vocabulary.special_ids.pad
    vectors = pooled(params["encoder"], config, batch, pad_id=pad_id, pooling=self.schema.pooling)
    head = params["heads"]["classification"]
    return heads.apply_classification_head(head, vectors, activation=self._activation)

  def outputs(self, rows: Sequence[Row], found: Sequence[Any], made: Inputs) -> np.ndarray:
    """[rows, outputs] float32."""
    return answers.join(made, np.stack(found))

  def answers(self, outputs: np.ndarray) -> list[dict[str, Any]]:
    """Labels with their probabilities, or numbers."""
    return answers.answers(self.schema, outputs)

  def columns(self) -> dict[str, str]:
    """The columns of `answers`, with their types."""
    (example,) = self.answers(np.zeros((1, self.schema.num_outputs), np.float32))
    kinds = {str: "string", float: "float64", list: "list of string"}
    return {name: kinds[type(value)] for name, value in example.items()}
