"""Rows whose words get a tag each."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from data.rows import Row
from finetune.own import tagging
from finetune.own.chances import PREDICTED, PROBABILITY
from finetune.own.schema import TaskSchema
from finetune.own.tagging import TagInputs
from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.inference.batches import Input
from pretrain.models import heads
from pretrain.models.encoder import encode


class Tags:
  """A `model.Kind`: a tag for every word."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """Nothing of `task`, what the model's meta says, is needed."""
    del task
    self.schema, self._encoder = schema, encoder
    self.cut = 0  # rows that lost words

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], TagInputs]:
    """Ids of the words, one or several windows for each row."""
    made = tagging.inputs(rows, self.schema, self._encoder.vocabulary)
    self.cut += made.cut
    return [{"ids": ids} for ids in made.examples.ids], made

  def compute(self, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """[batch, length, labels] float32."""
    ids, pad_id = batch["ids"], self._encoder.vocabulary.special_ids.pad
    _, hidden = encode(params["encoder"], self._encoder.config, ids, ids != pad_id, pad_id=pad_id)
    return heads.apply_tagging_head(params["heads"]["tagging"], hidden.last)

  def outputs(self, rows: Sequence[Row], found: Sequence[Any], made: TagInputs) -> list[np.ndarray]:
    """[words, labels] float32 of every row."""
    return tagging.join(made, found, self.schema)

  def answers(self, outputs: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Tags with their probabilities."""
    return tagging.answers(self.schema, outputs)

  def columns(self) -> dict[str, str]:
    """The columns of `answers`, with their types."""
    return {PREDICTED: "list of string", PROBABILITY: "list of float64"}
