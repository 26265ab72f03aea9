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
  """Inputs and answers of tasks with labels or a number for a text, or a label for each word or span."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """`task` is the task in the checkpoint's meta."""
    self._schema, self._vocabulary = schema, encoder.vocabulary
    head, pad_id = HeadSettings(activation=activation(task)), encoder.vocabulary.special_ids.pad
    self.problem = problems.problem(schema, encoder.config, head, pad_id=pad_id)
    self.cut = 0  # truncated rows

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], Inputs]:
    """Returns ids and token fields, one or several inputs for each row; also the `Inputs` for `outputs`."""
    made = answers.inputs(rows, self._schema, self._vocabulary)
    self.cut += made.cut
    fields = made.examples.token_fields
    inputs: list[Input] = [
      {"ids": ids} | {name: values[at] for name, values in fields.items()}
      for at, ids in enumerate(made.examples.ids)
    ]
    return inputs, made

  def outputs(self, rows: Sequence[Row], found: Sequence[Any], made: Inputs) -> Any:
    """Returns outputs [rows, outputs] float32; for words or spans, [words or spans, labels] for each row."""
    return answers.join(made, found, self._schema)

  def answers(self, outputs: Any) -> list[dict[str, Any]]:
    """Returns {column: value} for each row: labels with probabilities, or a number."""
    return answers.answers(self._schema, outputs)

  def columns(self) -> dict[str, str]:
    """Returns the columns of `answers` with their types."""
    return answers.columns(self._schema)
