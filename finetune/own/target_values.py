"""Targets of training: labels, numbers, lists of labels, and tags of words, read from a user's rows.

Each word of a tagged sentence is tokenised by itself; the word's output is that at its first token.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data.errors import DataError, counted, did_you_mean, listed
from data.rows import Row, as_list, values
from data.rows.values import ClassNumber, as_number, is_missing
from data.vocabulary import Vocabulary
from finetune.own import spans
from finetune.own.schema import Inputs, TaskSchema, pieces_of
from finetune.search.examples import Examples, text_of

MOST_LABELS = 10_000  # of a file; a column with more has texts or numbers


def shown_texts(row: Row, schema: TaskSchema) -> list[str]:
  """Returns the text or the two texts of a row, or its words joined to one text."""
  if schema.kind == "tagging":
    return [" ".join(words_of(row, schema.text[0]))]
  if schema.kind == "span_pairs":
    spans.spans_of(row, schema)  # raises for an invalid span before any row is answered
    return [" ".join(values.words_of(row, schema.text[0]))]
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
    return tags_of(row, schema)
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
      if schema.kind == "tagging" and is_entities(schema.labels):
        check_order(row, labels, schema.labels)
      sentences.append(np.asarray([_class(row, label, classes) for label in labels], np.int32))
    return sentences
  return np.asarray([_class(row, label_of(row, schema.label), classes) for row in rows], np.int32)


def _class(row: Row, label: str, classes: dict[str, int]) -> int:
  if label not in classes:
    _unknown(row, label, list(classes), "not in the training set")
  return classes[label]


def _unknown(row: Row, label: str, known: Sequence[str], why: str) -> None:
  row.refuse(f"label {label[:80]!r}: {why}{did_you_mean(label, known)}; known labels: {listed(known)}")


WORD = "word"  # token field: the number of the word, from 1, at its first token; 0 at all others
OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)")
_PLAIN = {"S": "B", "U": "B", "E": "I", "L": "I"}  # from BIOES and BILOU to BIO


def words_of(row: Row, column: str) -> list[str]:
  """Returns the words of a row; DataError if its column is not a list of texts, or is empty."""
  value = row.value(column)
  words = as_list(value)
  if words is None or not all(isinstance(word, str) for word in words):
    row.refuse(f"{column!r} is a {type(value).__name__}, expected a list of words")
  if not words or not all(word.strip() for word in words):
    row.refuse(f"{column!r} has {'an empty word' if words else 'no word'}; correct or remove this row")
  return words


def tags_of(row: Row, schema: TaskSchema) -> list[str]:
  """Returns the tags of a row; DataError if its column is not a list with one tag for each word."""
  value, words = row.value(schema.label), words_of(row, schema.text[0])
  tags = as_list(value)
  if tags is None:
    row.refuse(f"{schema.label!r} is a {type(value).__name__}, expected a list of tags")
  if len(tags) != len(words):
    row.refuse(f"{counted(len(tags), 'tag')} for {counted(len(words), 'word')}; expected one for each word")
  return [str(tag).strip() for tag in tags]


def is_entities(labels: Sequence[str]) -> bool:
  """Returns whether labels are tags of spans: all are O or like B-X and I-X, with a B- unless all are I-."""
  marks = [label for label in labels if label != OUTSIDE]
  return all(map(_TAG.fullmatch, marks)) and (is_iob1(labels) or any(mark[:2] == "B-" for mark in marks))


def is_iob1(labels: Sequence[str]) -> bool:
  """Returns whether all tags are O or like I-X, as in IOB1, which uses B- only between touching spans."""
  return OUTSIDE in labels and len(labels) > 1 and all(mark[:2] == "I-" for mark in labels if mark != OUTSIDE)


def check_order(row: Row, tags: Sequence[str], labels: Sequence[str]) -> None:
  """Raises DataError if the order of tags is invalid in BIO, or in BIOES if a label has its prefixes."""
  has_ends = any(label[:2] in ("E-", "S-", "L-", "U-") for label in labels)
  before, begins_inside = OUTSIDE, is_iob1(labels)
  for number, tag in enumerate([*tags, OUTSIDE], 1):
    goes_on, kind = tag[:1] in "IEL" and tag != OUTSIDE, tag[2:]
    was_open = before[:1] in "BI" and before != OUTSIDE
    if goes_on and not begins_inside and not (was_open and before[2:] == kind):
      row.refuse(f"{tag!r} at word {number} follows {before!r}; expected B-{kind} where a span begins")
    if has_ends and was_open and not goes_on:
      row.refuse(f"{before!r} at word {number - 1} is followed by {tag!r}; expected I- or E-{before[2:]}")
    before = tag


def inputs(rows: Sequence[Row], schema: TaskSchema, vocabulary: Vocabulary) -> Inputs:
  """Tokenises the words of rows to model inputs, truncated or in windows; DataError: a row has no words."""
  sentences = [words_of(row, schema.text[0]) for row in rows]
  room = schema.max_length - 2
  made, row_of, cut = Examples([], {}, {WORD: []}), [], 0
  for number, of_words in enumerate(pieces_of(sentences, vocabulary)):
    pieces = [ids[:room] for ids in of_words]
    windows = list(_windows([len(piece) for piece in pieces], room))
    if schema.long == "cut":
      cut += len(windows) > 1
      windows = windows[:1]
    for first, end in windows:
      tokens = [token for piece in pieces[first:end] for token in piece]
      at = [0]
      for word, piece in enumerate(pieces[first:end], first + 1):
        at += [word, *[0] * (len(piece) - 1)]
      made.ids.append(np.asarray(vocabulary.with_special_ids(tokens), np.int32))
      made.token_fields[WORD].append(np.asarray([*at, 0], np.int32))
      row_of.append(number)
  counts = np.asarray([len(words) for words in sentences], np.int64)
  return Inputs(made, np.asarray(row_of, np.int64), counts, cut)


def _windows(sizes: Sequence[int], room: int):
  """Yields (first, end) words of windows of at most `room` tokens, each from the middle of the one before."""
  first = 0
  while True:
    end, used = first, 0
    while end < len(sizes) and used + sizes[end] <= room:
      used += sizes[end]
      end += 1
    yield first, end
    if end >= len(sizes):
      return
    first = max((first + end) // 2, first + 1)


def join(made: Inputs, outputs: Sequence[np.ndarray], schema: TaskSchema) -> list[np.ndarray]:
  """Averages each word's output over the inputs that contain it: [words, labels] float32 per row.

  An output may be longer than its input, by padding. A word that was truncated gets O, or the first class if
  there is no O.
  """
  outside = schema.labels.index(OUTSIDE) if OUTSIDE in schema.labels else 0
  total = [np.zeros((count, len(schema.labels)), np.float64) for count in made.counts]
  seen = [np.zeros((count, 1), np.int64) for count in made.counts]
  for row, words, output in zip(made.row, made.examples.token_fields[WORD], outputs):
    (at,) = np.nonzero(words)
    total[row][words[at] - 1] += output[at]
    seen[row][words[at] - 1] += 1
  for of_row, counts in zip(total, seen):
    of_row[counts[:, 0] == 0, outside] = 1.0
  return [(of_row / np.maximum(counts, 1)).astype(np.float32) for of_row, counts in zip(total, seen)]


def as_bio(schema: TaskSchema, rows: Sequence[Sequence[int]]) -> list[list[str]]:
  """Returns classes of words as BIO tags; tags of BIOES and BILOU are converted."""
  plain = [
    f"{_PLAIN.get(label[0], label[0])}{label[1:]}" if _TAG.fullmatch(label) else label
    for label in schema.labels
  ]
  return [[plain[number] for number in row] for row in rows]


def kinds_of_span(schema: TaskSchema) -> list[str]:
  """Returns the kinds of spans, such as 'PER' of 'B-PER', in the order of the labels."""
  found = dict.fromkeys(match[2] for label in schema.labels if (match := _TAG.fullmatch(label)))
  if not found:
    raise DataError(f"{schema.label!r} has {listed(schema.labels)}; expected tags of spans: B-, I- and O")
  return list(found)
