"""A saved fine-tuned model of any kind, opened: makes inputs of rows, and answers of outputs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from configs import finetune_base
from data.errors import ConfigError, DataError
from data.glue.tasks import TASKS
from data.rows import Row
from data.squad import Question
from finetune.own import answers, search
from finetune.own.answers import PREDICTED, PROBABILITY
from finetune.own.schema import FILE, PROBLEM_TYPES, Inputs, TaskSchema
from finetune.search.examples import text_of
from finetune.search.problem import HeadSettings
from finetune.squad import answers as squad_answers
from finetune.squad import windows
from finetune.squad.search import make_problem
from finetune.squad.windows import Features, Prediction, Settings
from pretrain.checkpoints.saved_model import OpenedEncoder, SavedModel
from pretrain.export.task_fields import activation, last_layer
from pretrain.inference.batches import Compiled, Input

NO_ANSWER = "no answer by"  # column: score of "no answer" minus the best span's; above 0 the answer is ""


class Rows:
  """Makes model inputs from rows, and answers from outputs, for tasks about texts, words or spans."""

  def __init__(self, schema: TaskSchema, encoder: OpenedEncoder, task: Mapping[str, Any]) -> None:
    """Builds the model's head and outputs; `task` is the task stored in the checkpoint's metadata."""
    self._schema, self._vocabulary = schema, encoder.vocabulary
    head, pad_id = HeadSettings(activation=activation(task)), encoder.vocabulary.special_ids.pad
    self.problem = search.make(schema, encoder.config, head, pad_id=pad_id)
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
    return answers.columns_of(self._schema)


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


_QUESTION = ("question", "context")  # columns of a model that answers questions
# Those by which a model without `task.json` is known.
_HEADS = {"question_answering", "classification", "tagging"}
_TEXT = "text"  # the column of a model that stores none


@dataclasses.dataclass(frozen=True)
class Model:
  """A fine-tuned model on the devices, with its task schema, which answers rows of a file."""

  schema: TaskSchema
  kind: Rows | Questions
  _compiled: Compiled

  @property
  def shapes(self) -> set[tuple[int, ...]]:
    """Returns (rows, length) of the programs compiled so far."""
    return self._compiled.shapes

  def outputs(self, rows: Sequence[Row], inputs: tuple[Sequence[Any], Any]) -> Any:
    """Returns the model's outputs for rows; `inputs` is the result of `kind.inputs(rows)`."""
    given, made = inputs
    return self.kind.outputs(rows, self._compiled(given) if given else [], made)

  def answers(self, rows: Sequence[Row], inputs: tuple[Sequence[Any], Any]) -> list[dict[str, Any]]:
    """Returns the model's answers, {column: value} for each row; arguments as of `outputs`."""
    return self.kind.answers(self.outputs(rows, inputs))


def schema_of(saved: SavedModel) -> TaskSchema:
  """Returns a model's task schema: its `task.json`, else one made from its heads and stored task.

  A model that stores no columns of texts has none in its schema either; see `renamed`.

  DataError: the model has no head of a task.
  """
  if (saved.workdir / FILE).is_file():
    return TaskSchema.read(saved.workdir)
  heads, task = saved.params.get("heads", {}), saved.task
  positions = int(saved.meta["config"]["model"]["max_length"])
  if "question_answering" in heads:
    longest = int((task.get("windows") or {}).get("max_length", min(positions, 384)))
    return TaskSchema("question_answering", _QUESTION, "answers", (), "cls", longest)
  if task.get("words"):
    raise DataError(
      f"{saved.path}: fine-tuned with prompts, which this command does not answer; fine-tune a head:\n"
      "  --config=configs/finetune_own.py"
    )
  last = last_layer(heads)
  if last is None:
    there = ", ".join(sorted(heads)) or "none"
    raise DataError(
      f"{saved.path}: no head of a task (its heads: {there}); this is a pretrained encoder; fine-tune it "
      "first, or make vectors with pretrain.embed"
    )
  count = last["bias"].shape[0]
  labels = tuple(task.get("labels") or (() if count == 1 else (f"LABEL_{at}" for at in range(count))))
  kinds = {problem: kind for kind, problem in PROBLEM_TYPES.items() if kind != "span_pairs"}
  kind = kinds.get(task.get("problem_type") or "", "classification" if labels else "regression")
  kind = kind if "classification" in heads else "tagging"
  glue = TASKS.get(str(task.get("name")))
  texts, label = (glue.texts, glue.label) if glue else ((), "label")
  longest = int((task.get("fingerprint") or {}).get("max_length", positions))
  return TaskSchema(kind, texts, label, labels, task.get("pooling", "cls"), min(longest, positions))


def is_answering(saved: SavedModel) -> bool:
  """Returns whether a checkpoint is a fine-tuned model: it has a task schema or the head of a task."""
  return (saved.workdir / FILE).is_file() or not _HEADS.isdisjoint(saved.params.get("heads", {}))


def open_answering(
  saved: SavedModel,
  *,
  vocabulary: str,
  batch_size: int,
  names: Callable[[TaskSchema], TaskSchema] = lambda schema: renamed(schema, "", ""),
) -> Model:
  """Copies a model to the devices; `names` returns its schema with the columns to read.

  Raises:
    DataError: the model has no head of a task, or does not match its schema.
  """
  schema = names(schema_of(saved))
  encoder = saved.open_encoder(vocabulary, flag="--vocabulary")
  if schema.max_length > encoder.config.max_length:
    raise DataError(
      f"{saved.path}: {FILE} has max_length {schema.max_length}, more than the model's positions, "
      f"{encoder.config.max_length}; {FILE} belongs to another model"
    )
  make = Questions if schema.kind == "question_answering" else Rows
  kind = make(schema, encoder, saved.task)
  params = {"encoder": encoder.params, "heads": saved.params.get("heads", {})}
  _check_head(saved, schema, params["heads"])

  def outputs(params: dict, _: Any, batch: Mapping[str, Any], **special_ids: int) -> Any:
    return kind.problem.outputs(params, dict(batch), None)  # as in training, but without dropout

  compiled = encoder.program(outputs, params, batch_size=batch_size, longest=schema.max_length)
  return Model(schema, kind, compiled)


def _check_head(saved: SavedModel, schema: TaskSchema, heads: Mapping[str, Any]) -> None:
  if schema.kind == "question_answering":
    return
  head = heads.get(schema.head, {})
  head = head.get("output", head).get("bias")
  found = 0 if head is None else head.shape[0]
  if found != schema.num_outputs:
    raise DataError(
      f"{saved.path}: the head's size is {found}, expected {schema.num_outputs} "
      f"({', '.join(schema.labels[:5]) or 'a number'}); {FILE} belongs to another model"
    )


def renamed(schema: TaskSchema, text: str, text_pair: str, label: str = "") -> TaskSchema:
  """Returns the schema with other columns; '' keeps a column.

  A model that stores no columns reads 'text', or pairs if a second column is named. ConfigError: `text_pair`
  for a model of single texts.
  """
  own = schema.text or ((_TEXT, text_pair) if text_pair and not schema.is_several else (_TEXT,))
  if text_pair and len(own) < 2:
    raise ConfigError(f"--text_pair={text_pair}: the model reads one text; remove this flag")
  named = [asked or column for asked, column in zip((text, text_pair), own)]
  return dataclasses.replace(schema, text=tuple(named), label=label or schema.label)
