"""A saved fine-tuned model of any kind, opened: what it answers, from which columns, and its program."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data.errors import ConfigError, DataError
from data.glue.tasks import TASKS
from data.rows import Row
from finetune.inference.questions import Questions
from finetune.inference.rows import Rows
from finetune.own.schema import FILE, PROBLEM_TYPES, TaskSchema
from pretrain.checkpoints.saved_model import SavedModel, open_model
from pretrain.inference.compiled import Compiled
from pretrain.mesh import trees

_QUESTION = ("question", "context")  # columns of a model that answers questions
_TEXT = ("text",)  # the column of a model that does not say which it was trained on


@dataclasses.dataclass(frozen=True)
class Model:
  """A fine-tuned model on the devices."""

  schema: TaskSchema
  kind: Rows | Questions
  digest: str  # of its parameters
  _compiled: Compiled

  @property
  def shapes(self) -> set[tuple[int, ...]]:
    """(rows, length) of the programs that were compiled."""
    return self._compiled.shapes

  def outputs(self, rows: Sequence[Row], inputs: tuple[Sequence[Any], Any]) -> Any:
    """The outputs of rows, whose `inputs` are those of the kind."""
    given, made = inputs
    return self.kind.outputs(rows, self._compiled(given) if given else [], made)

  def answers(self, rows: Sequence[Row], inputs: tuple[Sequence[Any], Any]) -> list[dict[str, Any]]:
    """{column: value} for each row."""
    return self.kind.answers(self.outputs(rows, inputs))


def schema_of(saved: SavedModel) -> TaskSchema:
  """What a model answers: its `task.json`, or for models of GLUE, SQuAD and others what they were saved with.

  DataError: it has no head that could answer.
  """
  if (saved.workdir / FILE).is_file():
    return TaskSchema.read(saved.workdir)
  heads, task = saved.params.get("heads", {}), saved.task
  positions = int(saved.meta["config"]["model"]["max_length"])
  if "question_answering" in heads:
    longest = int((task.get("windows") or {}).get("max_length", min(positions, 384)))
    return TaskSchema("question_answering", _QUESTION, "answers", (), "cls", longest)
  if "classification" not in heads:
    there = ", ".join(sorted(heads)) or "none"
    raise DataError(
      f"{saved.path}: no head that answers (there is {there}); this is a pretrained encoder: fine-tune it "
      "first, or use pretrain.embed"
    )
  count = heads["classification"]["output"]["bias"].shape[0]
  labels = tuple(task.get("labels") or (() if count == 1 else (f"LABEL_{at}" for at in range(count))))
  kinds = {problem: kind for kind, problem in PROBLEM_TYPES.items() if kind != "span_pairs"}
  kind = kinds.get(task.get("problem_type") or "", "classification" if labels else "regression")
  glue = TASKS.get(str(task.get("name")))
  texts, label = (glue.texts, glue.label) if glue else (_TEXT, "label")
  return TaskSchema(kind, texts, label, labels, task.get("pooling", "cls"), positions)


def open_answering(
  directory: str,
  *,
  step: int | None,
  vocabulary: str,
  batch_size: int,
  names: Callable[[TaskSchema], TaskSchema] = lambda schema: schema,
) -> Model:
  """Opens a model and places it on the devices; `names` may change the columns that its schema names.

  Raises:
    DataError: there is no model, it cannot answer, or its schema is of another one.
  """
  saved = open_model(directory, step)
  schema = names(schema_of(saved))
  encoder = saved.open_encoder(vocabulary, flag="--vocabulary")
  if schema.max_length > encoder.config.max_length:
    raise DataError(
      f"{saved.path}: {FILE} wants {schema.max_length} tokens, the model has {encoder.config.max_length} "
      "positions; they are of two models"
    )
  make = Questions if schema.kind == "question_answering" else Rows
  kind = make(schema, encoder, saved.task)
  params = {"encoder": encoder.params, "heads": saved.params.get("heads", {})}
  _check_head(saved, schema, params["heads"])

  def outputs(params: dict, _: Any, batch: Mapping[str, Any], **special_ids: int) -> Any:
    return kind.problem.outputs(params, dict(batch), None)  # of training, without dropout

  compiled = encoder.program(outputs, params, batch_size=batch_size, longest=schema.max_length)
  return Model(schema, kind, trees.digest(params), compiled)


def _check_head(saved: SavedModel, schema: TaskSchema, heads: Mapping[str, Any]) -> None:
  if schema.kind == "question_answering":
    return
  head = heads.get(schema.head, {})
  head = head.get("output", head).get("bias")
  found = 0 if head is None else head.shape[0]
  if found != schema.num_outputs:
    raise DataError(
      f"{saved.path}: its head gives {found} numbers and its labels are {schema.num_outputs} "
      f"({', '.join(schema.labels[:5]) or 'a number'}); {FILE} is of another model"
    )


def renamed(schema: TaskSchema, text: str, text_pair: str, label: str = "") -> TaskSchema:
  """The schema with the columns that a user names; '' leaves one. ConfigError: a second text it has not."""
  if text_pair and len(schema.text) < 2:
    raise ConfigError(f"--text_pair={text_pair}: the model reads one text; leave it out")
  named = [asked or own for asked, own in zip((text, text_pair), schema.text)]
  return dataclasses.replace(schema, text=tuple(named), label=label or schema.label)
