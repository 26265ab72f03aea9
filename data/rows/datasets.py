"""Reads rows of a TFDS data set or a seqio Task: `tfds:NAME[#SPLIT]`, `seqio:TASK[#SPLIT]`.

Labels of TFDS are names. A feature that a Task tokenises is read as text:
'inputs' is the Task's 'inputs_pretokenized'.
"""

from collections.abc import Iterator
from typing import Any

from data import files, seqio_tasks, tfds_reader
from data.errors import DataError
from data.rows.values import Row

_KINDS = ("tfds", "seqio")
_TEXT_OF = "_pretokenized"


def kind_of(path: str) -> str:
  """Returns 'tfds' or 'seqio' if the name begins so; '' for the name of a file."""
  kind = path.partition(":")[0]
  return kind if kind in _KINDS and ":" in path else ""


def split_of(path: str, otherwise: str) -> tuple[str, str]:
  """Returns (name, split) of 'tfds:NAME#SPLIT' or 'seqio:NAME#SPLIT'; no '#SPLIT': `otherwise`."""
  name, _, split = path.partition(":")[2].partition("#")
  return name, split or otherwise


def read(path: str, otherwise: str, *, directory: str, module: str, download: bool) -> list[Row]:
  """Returns the examples of a split, in order.

  Args:
    otherwise: the split if the name has none.
    directory: data_dir of TFDS; '': its default.
    module: file or module that registers the Task.

  Raises:
    DataError: the data set, Task or split is missing or cannot be read.
  """
  name, split = split_of(path, otherwise)
  if not name:
    raise DataError(f"{path}: names nothing; expected tfds:NAME or seqio:TASK, optionally with #SPLIT")
  if kind_of(path) == "tfds":
    (examples,) = tfds_reader.read(directory, [(name, split)], download=download)
  else:
    given = {"module": module, "tfds_directory": directory, "download": download}
    examples = task_examples(name, split, **given)
  return [Row(fields, number, path, "example") for number, fields in enumerate(examples, 1)]


def digest(rows: list[Row]) -> str:
  """Returns the sha256 of all values of the rows, for comparison like a file's."""
  return files.digest_json([row.fields for row in rows])


def task_examples(name: str, split: str, **given: Any) -> Iterator[dict[str, Any]]:
  """Yields a Task's examples as JSON values; loads TensorFlow; arguments as for `seqio_tasks.examples`."""
  return map(_plain, seqio_tasks.examples(name, split, **given))


def _plain(example: dict[str, Any]) -> dict[str, Any]:
  """Returns an example with JSON values, and with the original text instead of its ids."""
  texts = {name.removesuffix(_TEXT_OF): value for name, value in example.items() if name.endswith(_TEXT_OF)}
  chosen = {name: value for name, value in example.items() if not name.endswith(_TEXT_OF)} | texts
  return {
    name: tfds_reader.as_json(value.tolist() if hasattr(value, "tolist") else value)
    for name, value in chosen.items()
  }
