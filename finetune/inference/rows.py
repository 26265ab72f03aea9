"""Rows of texts, words or spans: their inputs, and a trained head's outputs as answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from data.rows import Row
from finetune.own import answers, problems
from finetune.own.schema import Inputs, TaskSchema
from finetune.search.classification import HeadSettings
from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.export.task_fields import activation
from pretrain.inference.batches import Input


class Rows:
  """Labels or a number for each text, or a label for each word or span."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """`task` is what the model's meta says of its task."""
    self._schema, self._vocabulary = schema, encoder.vocabulary
    head, pad_id = HeadSettings(activation=activation(task)), encoder.vocabulary.special_ids.pad
    self.problem = problems.problem(schema, encoder.config, head, pad_id=pad_id)
    self.cut = 0  # rows that lost tokens

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], Inputs]:
    """Ids and values of tokens, one or several inputs for each row."""
    made = answers.inputs(rows, self._schema, self._vocabulary)
    self.cut += made.cut
    fields = made.examples.token_fields
    inputs: list[Input] = [
      {"ids": ids} | {name: values[at] for name, values in fields.items()}
      for at, ids in enumerate(made.examples.ids)
    ]
    return inputs, made

  def outputs(self, rows: Sequence[Row], found: Sequence[Any], made: Inputs) -> Any:
    """[rows, outputs] float32; of words and spans [words or spans, labels] of every row."""
    return answers.join(made, found, self._schema)

  def answers(self, outputs: Any) -> list[dict[str, Any]]:
    """Labels with their probabilities, or numbers."""
    return answers.answers(self._schema, outputs)

  def columns(self) -> dict[str, str]:
    """The columns of `answers`, with their types."""
    return answers.columns(self._schema)
