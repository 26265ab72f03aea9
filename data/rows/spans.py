"""Reads labelled spans of words, single or in pairs: the rows of edge probing.

A row has a text and targets, [{"span1": [start, end], "span2": [start, end], "label": "x"}, ...]. Spans count
words from 0 and exclude the end. Source of the format: Tenney et al. 2019, "What do you learn from context?",
and jiant.
"""

from typing import Any, NamedTuple

from data.errors import counted
from data.rows.values import Row, as_list

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
