"""Opens a saved fine-tuned model of any kind: its task schema, its parameters and its compiled program."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data.errors import ConfigError, DataError
from data.glue.tasks import TASKS
from data.rows import Row
from finetune.inference.kinds import Questions, Rows
from finetune.own.schema import FILE, PROBLEM_TYPES, TaskSchema
from pretrain.checkpoints.saved_model import SavedModel
from pretrain.export.task_fields import last_layer
from pretrain.inference.batches import Compiled

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
