"""A row of a file, with its place for messages."""

import dataclasses
from typing import Any, NoReturn

from data.errors import DataError, listed

MAX_CELL_CHARACTERS = 1 << 20  # more means a damaged file, or a document that must be cut first


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a file: its unchanged values by column, and its place in the file."""

  # Cells: str in CSV and TSV, any type in JSONL and Parquet (values.ClassNumber: a class with a name), lists
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


def place(source: str, number: int, unit: str) -> str:
  """Returns the place of a row for messages, such as 'train.csv, row 12'."""
  return f"{source}, {unit} {number:,}"


def check_cells(row: Row) -> Row:
  """Returns the row; DataError if one of its texts is longer than MAX_CELL_CHARACTERS."""
  for name, cell in row.fields.items():
    if isinstance(cell, str) and len(cell) > MAX_CELL_CHARACTERS:
      row.refuse(
        f"{len(cell):,} characters in {name!r}, at most {MAX_CELL_CHARACTERS:,} are allowed; close an open "
        "quote, or cut this text"
      )
  return row
