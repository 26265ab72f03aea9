"""Reads labels, numbers and lists of labels of rows as training targets. Imports no jax."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data.errors import DataError, did_you_mean, listed
from data.rows import Row, as_list
from data.rows.spans import words_of
from data.rows.values import ClassNumber, as_number, is_missing
from finetune.own import spans, tagging
from finetune.own.schema import TaskSchema
from finetune.search.user_file import text_of

MOST_LABELS = 10_000  # of a file; a column with more has texts or numbers


def shown_texts(row: Row, schema: TaskSchema) -> list[str]:
  """Returns the text or the two texts of a row, or its words joined to one text."""
  if schema.kind == "tagging":
    return [" ".join(tagging.words_of(row, schema.text[0]))]
  if schema.kind == "span_pairs":
    spans.spans_of(row, schema)  # raises for an invalid span before any row is answered
    return [" ".join(words_of(row, schema.text[0]))]
  return [text_of(row, column) for column in schema.text]


def shown_text(row: Row, schema: TaskSchema) -> str:
  """Returns the texts, or the words, of a row as one string."""
  return "\0".join(shown_texts(row, schema))


def has_text(row: Row, schema: TaskSchema) -> bool:
  """Returns whether all columns of a row's texts, or of its words, have a value."""
  texts = [row.fields[column] for column in schema.text if column in row.fields]
  return not any(is_missing(text) or (schema.is_several and as_list(text) == []) for text in texts)


def label_of(row: Row, column: str) -> str:
  """Returns the one label of a row as text; integers and booleans look the same in every file format."""
  value = row.value(column)
  if is_missing(value) or (isinstance(value, float) and math.isnan(value)):
    row.refuse(f"no label in {column!r}; add one, or remove this row")
  if isinstance(value, list | dict):
    row.refuse(
      f"{column!r} is a {type(value).__name__}, expected one label; for lists\n  --config.own.task=multilabel"
    )
  return str(value).strip()


def labels_of(row: Row, schema: TaskSchema) -> list[str]:
  """Returns all labels of a row: a list, a cell with separators, or a 0 or 1 for each label of the schema.

  An empty cell has no labels.
  """
  value = row.value(schema.label)
  if value is None:
    row.refuse(f"no value in {schema.label!r}; expected an empty list or cell if a text has no label")
  parts = as_list(value)
  if parts is None and isinstance(value, str):
    parts = value.split(schema.separator)
  if parts is None:
    row.refuse(f"{schema.label!r} is a {type(value).__name__}, expected a list of labels")
  names_no_label = not set(map(str, parts)) <= set(schema.labels)
  if len(parts) == len(schema.labels) and names_no_label and _are_multi_hot([parts]):
    return [label for label, is_there in zip(schema.labels, parts) if is_there]
  return list(dict.fromkeys(str(part).strip() for part in parts if not is_missing(part)))


def _are_multi_hot(rows: Sequence[Sequence[Any]]) -> bool:
  """Returns whether all rows are equally long lists of the numbers 0 and 1, two or more each."""
  sizes = {len(row) for row in rows}
  are_switches = all(
    not isinstance(value, str | ClassNumber) and value in (0, 1) for row in rows for value in row
  )
  return are_switches and len(sizes) == 1 and min(sizes) > 1


def refuse_multi_hot(rows: Sequence[Row], schema: TaskSchema) -> None:
  """Raises DataError if all rows have lists of zeros and ones, because the labels' names are unknown."""
  lists = [parts for row in rows if (parts := as_list(row.fields.get(schema.label))) is not None]
  if lists and _are_multi_hot(lists):
    count = len(lists[0])
    names = ",".join(f"name{at}" for at in range(1, min(count, 10) + 1)) + ",..." * (count > 10)
    rows[0].refuse(
      f"{schema.label!r} has lists of {count} zeros and ones, one for each label; name the labels in "
      f"this order:\n  --config.data.labels={names}"
    )


def number_of(row: Row, column: str) -> float:
  """Returns the target of a regression; DataError: it is not a finite number."""
  value = row.value(column)
  number = None if is_missing(value) else as_number(value)
  if number is None or not math.isfinite(number):
    row.refuse(f"{value!r} in {column!r}, expected a finite number; correct or remove this row")
  return number


def several_of(row: Row, schema: TaskSchema) -> list[str]:
  """Returns all labels of a row: one, several, or one per word or target; DataError if one is missing."""
  if schema.kind == "tagging":
    return tagging.tags_of(row, schema)
  if schema.kind == "span_pairs":
    return spans.labels_of(row, schema)
  if schema.kind == "multilabel":
    return labels_of(row, schema)
  return [label_of(row, schema.label)]


def check_label(row: Row, schema: TaskSchema) -> None:
  """Raises DataError if the row has no valid label or number for its kind of task."""
  if schema.kind == "regression":
    number_of(row, schema.label)
  else:
    several_of(row, schema)


def find_labels(rows: Iterable[Row], schema: TaskSchema, *, given: Sequence[str]) -> tuple[str, ...]:
  """Returns the labels of a training set in the order of their first appearance, or the `given` ones.

  `schema` has the `given` labels.

  Raises:
    DataError: fewer than two labels, too many, or a row has no label or one that is not `given`.
  """
  first_rows: dict[str, Row] = {}
  for row in rows:
    for label in several_of(row, schema):
      if given and label not in given:
        _unknown(row, label, given, "not in data.labels")
      first_rows.setdefault(label, row)
    if len(first_rows) > MOST_LABELS:
      row.refuse(
        f"more than {MOST_LABELS:,} different labels in {schema.label!r}; name another column, or use\n"
        "  --config.own.task=regression"
      )
  labels = tuple(given) or tuple(first_rows)
  if len(labels) < 2:
    source = next((row.source for row in first_rows.values()), "the training set")
    what = f"only the label {labels[0]!r}" if labels else "no label"
    raise DataError(f"{source}: {schema.label!r} has {what}; expected two or more labels")
  return labels


def alike(labels: Iterable[str]) -> list[list[str]]:
  """Returns groups of labels that differ only in case, spaces, invisible characters, or as '1' and '1.0'."""
  groups: dict[str, list[str]] = {}
  for label in labels:
    plain = unicodedata.normalize("NFKC", label).casefold()
    plain = "".join(sign for sign in plain if sign.isprintable() and not sign.isspace())
    number = as_number(plain)
    groups.setdefault(plain if number is None else str(number), []).append(label)
  return [group for group in groups.values() if len(group) > 1]


def targets(rows: Sequence[Row], schema: TaskSchema) -> np.ndarray | list[np.ndarray]:
  """Returns targets: [rows] int32 classes, [rows] float64 numbers, or [rows, labels] float32 of 0 and 1.

  For 'tagging' and 'span_pairs': a list with [words] or [targets] int32 classes for each row.

  Raises:
    DataError: a row has no label, one that the schema lacks, or tags in an order that BIO forbids; the
      message names the row.
  """
  if schema.kind == "regression":
    return np.asarray([number_of(row, schema.label) for row in rows], np.float64)
  classes = {label: number for number, label in enumerate(schema.labels)}
  if schema.kind == "multilabel":
    made = np.zeros((len(rows), len(classes)), np.float32)
    for at, row in enumerate(rows):
      for label in labels_of(row, schema):
        made[at, _class(row, label, classes)] = 1.0
    return made
  if schema.is_several:
    sentences = []
    for row in rows:
      labels = several_of(row, schema)
      if schema.kind == "tagging" and tagging.is_entities(schema.labels):
        tagging.check_order(row, labels, schema.labels)
      sentences.append(np.asarray([_class(row, label, classes) for label in labels], np.int32))
    return sentences
  return np.asarray([_class(row, label_of(row, schema.label), classes) for row in rows], np.int32)


def _class(row: Row, label: str, classes: dict[str, int]) -> int:
  if label not in classes:
    _unknown(row, label, list(classes), "not in the training set")
  return classes[label]


def _unknown(row: Row, label: str, known: Sequence[str], why: str) -> None:
  row.refuse(f"label {label[:80]!r}: {why}{did_you_mean(label, known)}; known labels: {listed(known)}")
