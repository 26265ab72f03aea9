"""A row of a file with its place for messages, values of its cells, and labelled spans of its words.

A row of edge probing has a text and targets, [{"span1": [start, end], "span2": [start, end], "label": "x"},
...]. Spans count words from 0 and exclude the end. Source of the format: Tenney et al. 2019, "What do you
learn from context?", and jiant.
"""

import ast
import dataclasses
import json
import re
import unicodedata
from typing import Any, NamedTuple, NoReturn

from data.errors import DataError, counted, listed
from data.text_files import place

MAX_CELL_CHARACTERS = 1 << 20  # more means a damaged file, or a document that must be cut first
_ITEM = r"(?:'[^']*'|\"[^\"]*\"|[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|True|False)"
_OF_NUMPY = re.compile(rf"\[\s*{_ITEM}(?:\s+{_ITEM})+\s*\]")  # without commas, Python would join the strings

_HALF = re.compile("[\ud800-\udfff]")
_SPELLED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # in JSON


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a file: its unchanged values by column, and its place in the file."""

  # Cells: str in CSV and TSV, any type in JSONL and Parquet (ClassNumber: a class with a name), lists
  # of str in CoNLL (columns '1', '2', ...).
  fields: dict[str, Any]
  number: int  # from 1: line in JSONL, text and CoNLL (first line), row after the header in tables
  source: str  # the file as the user named it
  unit: str = "row"  # of `number`: 'row', 'line', or 'item' of an array of JSON
  replaced: int = 0  # lone surrogates in JSON that were replaced with U+FFFD

  @property
  def place(self) -> str:
    """The place of the row for messages, such as 'train.csv, row 12'."""
    return place(self.source, self.number, self.unit)

  def refuse(self, problem: str) -> NoReturn:
    """Raises the DataError 'train.csv, row 12: problem'."""
    raise DataError(f"{self.place}: {problem}")

  def value(self, column: str) -> Any:
    """Returns the value of a column; DataError, which lists the columns, if it is missing."""
    if column not in self.fields:
      there = listed(self.fields) or "an empty row"
      self.refuse(f"no column {column!r}, only {there}; add it to this row, or name another")
    return self.fields[column]

  def text(self, column: str) -> str:
    """Returns the text in a column; DataError, with file and row number, if it is not text."""
    value = self.value(column)
    if not isinstance(value, str):
      self.refuse(f"{column!r} is a {type(value).__name__}; expected text; correct or remove this row")
    return value


def check_cells(row: Row) -> Row:
  """Returns the row; DataError if one of its texts is longer than MAX_CELL_CHARACTERS."""
  for name, cell in row.fields.items():
    if isinstance(cell, str) and len(cell) > MAX_CELL_CHARACTERS:
      row.refuse(
        f"{len(cell):,} characters in {name!r}, at most {MAX_CELL_CHARACTERS:,} are allowed; close an open "
        "quote, or cut this text"
      )
  return row


@dataclasses.dataclass(frozen=True)
class Exact:
  """A time, date or duration that Python's types cannot represent, such as one with nanoseconds."""

  text: str
  value: int  # in the unit of its Arrow type


class ClassNumber(int):
  """The number of a class whose name its file has: as text it is the name, and outputs get the number."""

  def __new__(cls, number: int, name: str) -> "ClassNumber":
    """Returns the number with its name; '' names no class, as that of rows without a label, -1."""
    made = super().__new__(cls, number)
    made.name = name
    return made

  name: str

  def __str__(self) -> str:
    return self.name


def named(value: Any, feature: Any) -> Any:
  """Returns a value with `ClassNumber` for the numbers of classes that a feature of `datasets` names."""
  if isinstance(feature, list):  # an older form of lists
    feature = feature[0] if feature else {}
  if not isinstance(feature, dict) or value is None:
    return value
  inner = feature.get("feature", feature)
  if isinstance(value, list):
    return [named(item, inner) for item in value]
  if isinstance(value, dict):
    return {name: named(item, inner.get(name)) for name, item in value.items()}
  names = class_names(feature)
  if names and isinstance(value, int):
    return ClassNumber(value, names[value] if 0 <= value < len(names) else "")
  return value


def class_names(feature: Any) -> list[str]:
  """Returns the names of the classes of a feature of `datasets`; [] if there are none, or only numbers."""
  is_class = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
  names = list(map(str, feature.get("names") or [])) if is_class else []
  return names if names != list(map(str, range(len(names)))) else []


def of_arrow(column: Any) -> list[Any]:
  """Returns the values of a pyarrow.Array; values that Python has no type for become `Exact`."""
  try:
    return column.to_pylist()
  except (ValueError, OverflowError):
    return [_of_scalar(scalar) for scalar in column]


def _of_scalar(scalar: Any) -> Any:
  import pyarrow  # here: slow to import

  if scalar.is_valid and pyarrow.types.is_struct(scalar.type):
    return {name: _of_scalar(item) for name, item in scalar.items()}
  if scalar.is_valid and hasattr(scalar, "values") and not pyarrow.types.is_dictionary(scalar.type):
    return of_arrow(scalar.values)
  try:
    return scalar.as_py()
  except (ValueError, OverflowError):
    return Exact(scalar.cast(pyarrow.string()).as_py().replace(" ", "T", 1), scalar.value)


def read_json(text: str) -> tuple[Any, int]:
  """Returns the value of a JSON text, and the number of lone surrogates that became U+FFFD.

  A lone surrogate, for example half of a cut emoji, cannot be encoded. ValueError or RecursionError: the text
  is not JSON.
  """
  value, count = json.loads(text), 0
  if not _SPELLED_HALF.search(text):
    return value, 0

  def whole(value: Any) -> Any:
    nonlocal count
    if isinstance(value, str):
      value, halves = _HALF.subn("\ufffd", value)
      count += halves
    elif isinstance(value, list):
      return [whole(item) for item in value]
    elif isinstance(value, dict):
      return {whole(name): whole(item) for name, item in value.items()}
    return value

  return whole(value), count


def replaced(path: str, count: int) -> str:
  """Returns a message with the number of lone surrogates that were replaced in a file."""
  return f"{path}: lone surrogates (halves of characters) replaced by U+FFFD: {count:,}"


def as_list(value: Any) -> list[Any] | None:
  """Converts a list, or text that spells one in JSON, Python or numpy, to a list; else returns None."""
  if isinstance(value, list):
    return value
  text = value.strip() if isinstance(value, str) else ""
  if not (text.startswith("[") and text.endswith("]")):
    return None
  if _OF_NUMPY.fullmatch(text):
    text = ", ".join(re.findall(_ITEM, text)).join("[]")
  for parse in (json.loads, ast.literal_eval):
    try:
      made = parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      continue
    return made if isinstance(made, list) else None
  return None


def plain_text(text: str) -> str:
  """Returns a text without differences of case, spaces and Unicode form, to compare it with others."""
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def is_missing(value: Any) -> bool:
  """Returns whether a value is None, an empty cell, or the number of no class."""
  return value is None or (isinstance(value, str | ClassNumber) and not str(value).strip())


def as_number(value: Any) -> float | None:
  """Returns a value as a number, which may be NaN; None if it is not a number."""
  try:
    return None if isinstance(value, bool) else float(value)
  except (TypeError, ValueError):
    return None


_FORM = "expected [first word, the word behind the last], counted from 0"

Span = tuple[int, int]  # words [start, end)


class Target(NamedTuple):
  """One or two spans of words in a sentence, and the labels to predict for them."""

  spans: tuple[Span, ...]  # one or two
  labels: tuple[str, ...]


def words_of(row: Row, column: str) -> list[str]:
  """Returns the words of a row, from a list or a text split at spaces; DataError if there are none."""
  value = row.value(column)
  words = as_list(value)
  if words is None and isinstance(value, str):
    words = value.split()
  if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
    row.refuse(f"{column!r} is a {type(value).__name__}, expected a text, or a list of words")
  if not words:
    row.refuse(f"{column!r} is empty; give it a text, or remove this row")
  return words


def targets_of(row: Row, text: str, column: str, *, has_labels: bool = True) -> list[Target]:
  """Returns the targets in a column of a row; without `has_labels` their labels are ignored.

  DataError, with the row's place: the column has no list of objects, a span is outside the text in column
  `text`, or a label is missing.
  """
  count, targets = len(words_of(row, text)), as_list(row.value(column))
  if not isinstance(targets, list) or not all(isinstance(target, dict) for target in targets):
    row.refuse(
      f"{column!r} is no list of objects; expected [{{'span1': [0, 2], 'span2': [3, 4], 'label': ...}}]"
    )
  read = []
  for number, target in enumerate(targets, 1):
    names = ("span1", "span2") if target.get("span2") is not None else ("span1",)
    spans = tuple(_span(row, number, target.get(name), name, count) for name in names)
    read.append(Target(spans, _labels(row, number, target.get("label")) if has_labels else ()))
  return read


def _span(row: Row, number: int, value: Any, name: str, count: int) -> Span:
  if not isinstance(value, list) or [type(end) for end in value] != [int, int]:
    row.refuse(f"target {number}: {name} is {value!r}; {_FORM}")
  first, behind = value
  if not 0 <= first < behind <= count:
    row.refuse(f"target {number}: {name} is {value!r} in a text of {counted(count, 'word')}; {_FORM}")
  return first, behind


def _labels(row: Row, number: int, value: Any) -> tuple[str, ...]:
  if value is None or isinstance(value, dict):
    row.refuse(f"target {number} has no label; add one")
  return tuple(map(str, value if isinstance(value, list) else [value]))
