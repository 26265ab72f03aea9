"""Makes inputs from rows of texts, words or spans, and answers from the outputs of a trained head."""

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
  """Makes model inputs from rows, and answers from outputs, for tasks about texts, words or spans."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """Builds the model's head and outputs; `task` is the task stored in the checkpoint's metadata."""
    self._schema, self._vocabulary = schema, encoder.vocabulary
    head, pad_id = HeadSettings(activation=activation(task)), encoder.vocabulary.special_ids.pad
    self.problem = problems.problem(schema, encoder.config, head, pad_id=pad_id)
    self.cut = 0  # truncated rows

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], Inputs]:
    """Tokenises rows to one or several inputs each; also returns the `Inputs` that `outputs` needs."""
    made = answers.inputs(rows, self._schema, self._vocabulary)
    self.cut += made.cut
    fields = made.examples.token_fields
    inputs: list[Input] = [
      {"ids": ids} | {name: values[at] for name, values in fields.items()}
      for at, ids in enumerate(made.examples.ids)
    ]
    return inputs, made

  def outputs(self, rows: Sequence[Row], found: Sequence[Any], made: Inputs) -> Any:
    """Joins model outputs by row: [rows, outputs] float32, or a list of [words or spans, labels]."""
    return answers.join(made, found, self._schema)

  def answers(self, outputs: Any) -> list[dict[str, Any]]:
    """Returns {column: value} for each row: labels with probabilities, or a number."""
    return answers.answers(self._schema, outputs)

  def columns(self) -> dict[str, str]:
    """Returns the columns of `answers` with their types."""
    return answers.columns(self._schema)
