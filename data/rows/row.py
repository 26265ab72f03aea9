"""One row of a file, and where a user finds it."""

import dataclasses
from typing import Any, NoReturn

from data.errors import DataError, listed

MAX_CELL_CHARACTERS = 1 << 20  # more is a damaged file, or a document that should be cut first


@dataclasses.dataclass(frozen=True)
class Row:
  """A row as it is in its file."""

  # Cells of CSV and TSV are str, of JSONL and Parquet as they are; of CoNLL lists of str, by column from '1'.
  fields: dict[str, Any]
  number: int  # from 1: the line of JSONL, CoNLL (its first) and text, the row after the header of a table
  source: str  # the file as it was given
  unit: str = "row"  # or 'line'
  replaced: int = 0  # lone halves of characters in JSON, now U+FFFD

  @property
  def place(self) -> str:
    """Such as 'train.csv, row 12'."""
    return place(self.source, self.number, self.unit)

  def refuse(self, problem: str) -> NoReturn:
    """Raises the DataError 'train.csv, row 12: problem'."""
    raise DataError(f"{self.place}: {problem}")

  def value(self, column: str) -> Any:
    """The value of a column; DataError, with those that are there, if the row has none of the name."""
    if column not in self.fields:
      there = listed(self.fields) or "an empty row"
      self.refuse(f"no column {column!r}, only {there}; add it to this row, or name another")
    return self.fields[column]


def place(source: str, number: int, unit: str) -> str:
  """Where a row is, for messages."""
  return f"{source}, {unit} {number:,}"


def check_cells(row: Row) -> Row:
  """The row; DataError if a text in it is longer than any that a model could be meant to read."""
  for name, cell in row.fields.items():
    if isinstance(cell, str) and len(cell) > MAX_CELL_CHARACTERS:
      row.refuse(
        f"{len(cell):,} characters in {name!r}, at most {MAX_CELL_CHARACTERS:,} are read; close a quote that "
        "was left open, or cut this text"
      )
  return row
