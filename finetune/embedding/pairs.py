"""Reads rows of two texts with a number or a yes or no, and guesses their columns. Imports no jax."""

import argparse
import dataclasses
import math

from data import rows
from data.errors import ConfigError, DataError, did_you_mean, listed
from data.rows import Row, names
from data.rows.values import as_number

# GLUE's, SICK's and MRPC's own names, then those of all tasks; case does not count.
_PAIRS = (*names.PAIRS, ("sentence_a", "sentence_b"), ("#1 string", "#2 string"), ("anchor", "positive"))
_LABELS = ("relatedness_score", "similarity_score", "similarity", "is_duplicate", "quality", "score")
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
    DataError: no column is known to be the text or the label.
  """
  there = rows.columns(path)
  for flag in ("text", "text_pair", "label"):
    name = getattr(asked, flag)
    if name and name not in there:
      hint = did_you_mean(name, there)
      raise ConfigError(f"--{flag}={name}: {path} has no such column{hint}; it has {listed(there)}")
  if bool(asked.text) != bool(asked.text_pair):
    raise ConfigError("--text and --text_pair name the two texts of a row; give both, or neither")
  by_name = {name.lower(): name for name in there if name != asked.label}
  known = ((by_name[first], by_name[second]) for first, second in _PAIRS if {first, second} <= set(by_name))
  texts = (asked.text, asked.text_pair) if asked.text else next(known, None)
  if texts is None:
    raise DataError(
      f"{path}: no columns of {listed(there)} are known to be two texts; name them:\n"
      "  --text=NAME --text_pair=NAME"
    )
  left = {lower: name for lower, name in by_name.items() if name not in texts}
  label = asked.label or next((left[name] for name in (*_LABELS, *names.LABELS) if name in left), "")
  if not label:
    raise DataError(
      f"{path}: no column of {listed(there)} is known to be the label; name it:\n  --label=NAME"
    )
  return PairColumns(texts, label)
