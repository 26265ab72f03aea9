"""Reads rows of two texts with a number or a yes or no. Imports no jax."""

import argparse
import dataclasses
import math

from data import rows
from data.errors import ConfigError, DataError, listed
from data.rows import Row
from data.rows.values import as_number
from finetune.embedding import columns

_QUERIES = ("query", "question", "anchor")  # columns of queries; other texts are passages
_BOOLEANS = {"true": 1.0, "false": 0.0}


@dataclasses.dataclass(frozen=True)
class PairColumns:
  """The columns of two texts and of their label."""

  texts: tuple[str, str]
  label: str

  @property
  def sides(self) -> tuple[str, str]:
    """The side of each text: 'query' by the name of its column, else 'passage'."""
    first, second = ("query" if name.lower() in _QUERIES else "passage" for name in self.texts)
    return first, second

  def number(self, row: Row) -> float:
    """Returns the label of a row, 1 and 0 for true and false; DataError: it is no finite number."""
    value = row.value(self.label)
    number = _BOOLEANS.get(str(value).strip().lower(), as_number(value))
    if number is None or not math.isfinite(number):
      row.refuse(f"{self.label!r} is {str(value)[:40]!r}; expected a number, or true or false")
    return number


def find_columns(path: str, asked: argparse.Namespace) -> PairColumns:
  """Returns the columns that --text, --text_pair and --label name, or guesses them by common names.

  Raises:
    ConfigError: the file lacks a named column, or one text is named without the other.
    DataError: no column is known to be the text or the label, or the label is a class with a name.
  """
  if bool(asked.text) != bool(asked.text_pair):
    raise ConfigError("--text and --text_pair name the two texts of a row; give both, or neither")
  there = rows.columns(path)
  of_texts = {"text": asked.text, "text_pair": asked.text_pair}
  chosen = columns.find(path, there, **of_texts, label=asked.label, flag="--")
  if not chosen.second:
    raise DataError(
      f"{path}: no columns of {listed(there)} are known to be two texts; name them:\n"
      "  --text=NAME --text_pair=NAME"
    )
  columns.refuse_classes(path, chosen, label=asked.label, flag="--")
  if not chosen.score:
    raise DataError(
      f"{path}: no column of {listed(there)} is known to be the label; name it:\n  --label=NAME"
    )
  return PairColumns((chosen.first, chosen.second), chosen.score)
