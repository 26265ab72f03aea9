"""The schema of a user's own task (kind, columns, labels), stored in `task.json` of a model. No jax."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, counted, named_reason, reading, unknown
from data.vocabulary import Vocabulary
from finetune.search.examples import Examples
from finetune.validate import OWN_TASKS
from pretrain.export.task_fields import TASK

FILE = TASK
VERSION = 1
KINDS = OWN_TASKS
# The `problem_type` in transformers' config.json, which chooses the loss of a model for whole texts.
PROBLEM_TYPES = {
  "classification": "single_label_classification",
  "multilabel": "multi_label_classification",
  "regression": "regression",
  "span_pairs": "single_label_classification",
}
THRESHOLD = 0.5  # least probability at which 'multilabel' predicts a label


@dataclasses.dataclass(frozen=True)
class TaskSchema:
  """A task's kind, columns and labels, which training stores in the model as `task.json` for prediction."""

  kind: str  # one of `KINDS`
  text: tuple[str, ...]  # column of the text, or the two columns of a pair; for tagging, that of the words
  label: str  # column of the label, the number, the labels, the tags, or the targets of 'span_pairs'
  labels: tuple[str, ...]  # class 0 first; empty for regression and question answering
  pooling: str  # 'cls', 'mean' or 'max': the vector of a text that the head reads
  max_length: int  # most tokens of an input, special tokens included
  long: str = "cut"  # a longer text is 'cut', or read in 'windows' whose scores are averaged
  separator: str = ""  # between the labels of a CSV or TSV cell, for 'multilabel'
  version: int = VERSION

  @property
  def problem_type(self) -> str:
    """Returns transformers' `problem_type`; '' if it has none for the kind."""
    return PROBLEM_TYPES.get(self.kind, "")

  @property
  def is_several(self) -> bool:
    """Returns whether a row has a list of answers, one for each word or target."""
    return self.kind in ("tagging", "span_pairs")

  @property
  def things(self) -> str:
    """Returns the plural of the thing that gets one answer: 'words', 'targets' or 'rows'."""
    return {"tagging": "words", "span_pairs": "targets"}.get(self.kind, "rows")

  @property
  def head(self) -> str:
    """Returns the name of the head in the model's parameters."""
    return self.kind if self.is_several or self.kind == "question_answering" else "classification"

  @property
  def num_outputs(self) -> int:
    """Returns the size of the head's output for a text, word, target, or token (2: start and end)."""
    return 2 if self.kind == "question_answering" else len(self.labels) or 1

  def as_json(self) -> str:
    """Returns the content of `task.json`."""
    return json.dumps(dataclasses.asdict(self) | {"problem_type": self.problem_type}, indent=1) + "\n"

  @classmethod
  def read(cls, directory: str | os.PathLike) -> "TaskSchema":
    """Reads the schema of the model in a directory.

    Raises:
      DataError: the file is missing, damaged, or of another version.
    """
    path = pathlib.Path(directory) / FILE
    if not path.is_file():
      raise DataError(
        f"{path}: no such file; give the folder 'model' in the workdir of a finished run of\n"
        "  python -m finetune.main --config=configs/finetune_own.py"
      )
    with reading(path, advice="train the model again"):
      content = path.read_bytes()
    try:
      values = json.loads(content)
      version = values["version"]
      if version != VERSION:
        raise DataError(f"{path}: version {version}, expected {VERSION}; use the program that wrote it")
      return cls(**{field.name: _value(values, field) for field in dataclasses.fields(cls)}).checked(path)
    except (ValueError, KeyError, TypeError) as error:
      raise DataError(f"{path}: damaged ({named_reason(error)}); train the model again") from error

  def checked(self, path: os.PathLike) -> "TaskSchema":
    """Returns the schema; DataError: its kind is unknown, or labels do not fit the kind."""
    if self.kind not in KINDS:
      raise DataError(f"{path}: {unknown('kind', self.kind, KINDS)}")
    if bool(self.labels) == (self.kind in ("regression", "question_answering")):
      raise DataError(f"{path}: {counted(len(self.labels), 'label')} of kind {self.kind!r}; train it again")
    return self


class Inputs(NamedTuple):
  """Tokenised rows: one or several encoder inputs for each row, and its number of answers."""

  examples: Examples  # the inputs without labels: ids with special tokens, and fields of tokens
  row: np.ndarray  # [inputs] int64, increasing: the row of each input
  counts: np.ndarray  # [rows] int64: number of answers: 1, or that of its words or targets
  cut: int  # number of truncated rows


def _value(values: dict[str, Any], field: dataclasses.Field) -> Any:
  value = values[field.name]
  return tuple(value) if isinstance(value, list) else value


def pieces_of(sentences: Sequence[Sequence[str]], vocabulary: Vocabulary) -> list[list[list[int]]]:
  """Returns the ids of each word of each sentence; a word without pieces gets the unknown piece."""
  unknown = [vocabulary.special_ids.unk]
  return [[ids or unknown for ids in words] for words in vocabulary.encode_words(sentences)]
