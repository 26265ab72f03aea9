"""What a model of one's own task answers and from what: `task.json` beside it. Imports no jax."""

import dataclasses
import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, named_reason, reading, unknown
from finetune.search.examples import Examples
from finetune.settings import OWN_TASKS
from pretrain.export.task_fields import TASK

FILE = TASK
VERSION = 1
KINDS = OWN_TASKS
# Of transformers' config.json: which of its losses and answers a class for whole texts has.
PROBLEM_TYPES = {
  "classification": "single_label_classification",
  "multilabel": "multi_label_classification",
  "regression": "regression",
  "span_pairs": "single_label_classification",
}
THRESHOLD = 0.5  # the probability from which a text has a label of 'multilabel'


@dataclasses.dataclass(frozen=True)
class TaskSchema:
  """A task as training found it in its file, and as evaluation and prediction go by it."""

  kind: str  # one of `KINDS`
  text: tuple[str, ...]  # column of the text, or of the two of a pair; of tagging the column of the words
  label: str  # column of the label, the number, the labels, the tags, or the targets of 'span_pairs'
  labels: tuple[str, ...]  # class 0 first; empty for regression and question answering
  pooling: str  # 'cls', 'mean' or 'max': the vector of a text that the head reads
  max_length: int  # most tokens of an input, special ones too
  long: str = "cut"  # a text that is longer: 'cut', or read by 'windows' whose scores are averaged
  separator: str = ""  # between the labels of a cell of CSV or TSV, for 'multilabel'
  version: int = VERSION

  @property
  def problem_type(self) -> str:
    """As transformers names it; '' where it has no name for the kind."""
    return PROBLEM_TYPES.get(self.kind, "")

  @property
  def is_several(self) -> bool:
    """Whether a row has a list of answers: one for each of its words, or of its targets."""
    return self.kind in ("tagging", "span_pairs")

  @property
  def things(self) -> str:
    """What has one answer each: 'words', 'targets' or 'rows'."""
    return {"tagging": "words", "span_pairs": "targets"}.get(self.kind, "rows")

  @property
  def head(self) -> str:
    """The name of the head among a model's."""
    return self.kind if self.is_several or self.kind == "question_answering" else "classification"

  @property
  def num_outputs(self) -> int:
    """Numbers that the head gives for a text, a word, a target, or for a token (2, of an answer)."""
    return 2 if self.kind == "question_answering" else len(self.labels) or 1

  def as_json(self) -> str:
    """The content of `task.json`."""
    return json.dumps(dataclasses.asdict(self) | {"problem_type": self.problem_type}, indent=1) + "\n"

  @classmethod
  def read(cls, directory: str | os.PathLike) -> "TaskSchema":
    """The schema of the model in a directory.

    Raises:
      DataError: there is none, it is damaged, or a newer version wrote it.
    """
    path = pathlib.Path(directory) / FILE
    if not path.is_file():
      raise DataError(
        f"{path}: there is no such file; give the folder 'model' in the workdir of a finished "
        "`finetune.main --config=configs/finetune_own.py`"
      )
    with reading(path, advice="train the model again"):
      content = path.read_bytes()
    try:
      values = json.loads(content)
      version = values["version"]
      if version != VERSION:
        raise DataError(f"{path}: version {version}, this program reads {VERSION}; use the one that wrote it")
      return cls(**{field.name: _value(values, field) for field in dataclasses.fields(cls)}).checked(path)
    except (ValueError, KeyError, TypeError) as error:
      raise DataError(f"{path}: damaged ({named_reason(error)}); train the model again") from error

  def checked(self, path: os.PathLike) -> "TaskSchema":
    """The schema; DataError if its kind is unknown or has not as many labels as it must have."""
    if self.kind not in KINDS:
      raise DataError(f"{path}: {unknown('kind', self.kind, KINDS)}")
    if bool(self.labels) == (self.kind in ("regression", "question_answering")):
      raise DataError(f"{path}: {len(self.labels)} labels of kind {self.kind!r}; train the model again")
    return self


class Inputs(NamedTuple):
  """Rows as an encoder reads them."""

  examples: Examples  # the inputs without labels: ids with special ones, and fields of tokens
  row: np.ndarray  # [inputs] int64, increasing: the row of each
  counts: np.ndarray  # [rows] int64: how many answers each has: 1, its words, or its targets
  cut: int  # how many rows lost tokens


def _value(values: dict[str, Any], field: dataclasses.Field) -> Any:
  value = values[field.name]
  return tuple(value) if isinstance(value, list) else value
