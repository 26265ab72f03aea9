"""Makes model inputs of rows, and answers of outputs: for texts, words and spans, and for questions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from configs import finetune_base
from data.rows import Row
from data.squad import Question
from finetune.own import answers, problems
from finetune.own.answers import PREDICTED, PROBABILITY
from finetune.own.schema import Inputs, TaskSchema
from finetune.search.classification import HeadSettings
from finetune.search.user_file import text_of
from finetune.squad import answers as squad_answers
from finetune.squad import windows
from finetune.squad.decoding import Prediction
from finetune.squad.problem import make_problem
from finetune.squad.windows import Features, Settings
from pretrain.checkpoints.saved_model import OpenedEncoder
from pretrain.export.task_fields import activation
from pretrain.inference.batches import Input

NO_ANSWER = "no answer by"  # column: score of "no answer" minus the best span's; above 0 the answer is ""


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


class Questions:
  """Makes inputs and answers of extractive question answering, with the methods of `Rows`."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """Reads window sizes, and whether "no answer" is allowed, from `task`, the model's stored task."""
    self.schema, self._encoder = schema, encoder
    self._can_be_null = not str(task.get("metric", "best_f1")).startswith(("f1", "exact"))
    is_masked, pad_id = bool(task.get("mask_query", True)), encoder.vocabulary.special_ids.pad
    self.problem = make_problem(encoder.config, pad_id=pad_id, use_mask=is_masked)
    self._settings = _settings(schema, task.get("windows") or {})
    self.cut = 0  # no row is truncated: the windows cover the whole text

  def inputs(self, rows: Sequence[Row]) -> tuple[list[Input], tuple[list[Question], Features]]:
    """Returns the model inputs of all windows, and the (questions, windows) that `outputs` needs."""
    question, context = self.schema.text
    questions = [
      Question(str(at), "", text_of(row, context), text_of(row, question), (), True)
      for at, row in enumerate(rows)
    ]
    features = windows.build(questions, self._encoder.vocabulary, self._settings, training=False)
    allowed = features.examples.token_fields["allowed"]
    given: list[Input] = [{"ids": ids, "allowed": may} for ids, may in zip(features.examples.ids, allowed)]
    return given, (questions, features)

  def outputs(
    self, rows: Sequence[Row], found: Sequence[Any], made: tuple[list[Question], Features]
  ) -> list[Prediction]:
    """Returns the decoded answer of each row, from the logits of all windows."""
    questions, features = made
    decoded = squad_answers.decode(
      questions,
      features,
      [starts for starts, _ in found],
      [ends for _, ends in found],
      self._encoder.vocabulary,
      self._settings,
      can_be_null=self._can_be_null,
    )
    return [decoded[question.id] for question in questions]

  def answers(self, outputs: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Returns {column: value} for each row: answer ('': none), probability, margin of "no answer"."""
    made = []
    for prediction in outputs:
      text = prediction.text_at(0.0)
      chance = next((best.probability for best in prediction.n_best if best.text == text), 0.0)
      made.append({PREDICTED: text, PROBABILITY: chance})
      if self._can_be_null:
        made[-1][NO_ANSWER] = prediction.null_odds
    return made

  def columns(self) -> dict[str, str]:
    """Returns the columns of `answers` with their types."""
    return {PREDICTED: "string", PROBABILITY: "float64"} | (
      {NO_ANSWER: "float64"} if self._can_be_null else {}
    )


def _settings(schema: TaskSchema, stored: Mapping[str, Any]) -> Settings:
  """Returns the stored settings of windows; those that older models lack get defaults within `max_length`."""
  usual = windows.settings_of(finetune_base.get_config(), schema.max_length)
  fitting = {
    "stride": min(usual.stride, schema.max_length // 2),
    "max_query_length": min(usual.max_query_length, schema.max_length // 4),
  }
  return dataclasses.replace(usual, **fitting | {name: int(value) for name, value in stored.items()})
