"""Spans of words with a label each, alone or in pairs: the lines of edge probing. Imports no jax.

A row has a text of words and 'targets': [{"span1": [first, behind], "span2": [first, behind], "label": "x"},
...], in words counted from 0. Every target is an example: what an encoder reads of the sentence, and which
tokens are of which span. Source of the form: Tenney et al. 2019, "What do you learn from context?"; jiant.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from data.rows import Row
from data.vocabulary import Vocabulary
from finetune.own.schema import TaskSchema
from finetune.own.tagging import pieces_of
from finetune.search.examples import Examples

SPAN = "span"  # token field: 1 at tokens of the first span, 2 at those of the second, 3 of both, 0 elsewhere
FIRST, SECOND = 1, 2
_FORM = "expected [first word, the word behind the last], counted from 0"

Span = tuple[int, int]


class SpanInputs(NamedTuple):
  """Targets as an encoder reads them."""

  examples: Examples  # one for each target, with the token field `SPAN`
  row: np.ndarray  # [targets] int64, increasing: which of the rows each is of
  counts: np.ndarray  # [rows] int64: how many targets each has
  cut: int  # how many rows lost words


def words_of(row: Row, column: str) -> list[str]:
  """The words of a row: a list, or what stands between spaces of a text; a DataError with its place: none."""
  value = row.value(column)
  words = value.split() if isinstance(value, str) else value
  if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
    row.refuse(f"{column!r} is a {type(value).__name__}, expected a text, or a list of words")
  if not words:
    row.refuse(f"{column!r} is empty; give it a text, or remove this row")
  return words


def targets_of(row: Row, column: str) -> list[dict[str, Any]]:
  """The targets of a row as they are; a DataError with its place if they are not a list of objects."""
  targets = row.value(column)
  if not isinstance(targets, list) or not all(isinstance(target, dict) for target in targets):
    row.refuse(
      f"{column!r} is no list of objects; expected [{{'span1': [0, 2], 'span2': [3, 4], 'label': ...}}]"
    )
  return targets


def is_targets(value: Any) -> bool:
  """Whether a value looks like targets: a list of objects with a span."""
  return isinstance(value, list) and any(isinstance(one, dict) and "span1" in one for one in value)


def labels_of(row: Row, column: str) -> list[str]:
  """The label of every target."""
  labels = []
  for number, target in enumerate(targets_of(row, column), 1):
    label = target.get("label")
    if label is None or isinstance(label, list | dict) or not str(label).strip():
      row.refuse(f"target {number} has {'no label' if not label else 'several labels'}; expected one")
    labels.append(str(label).strip())
  return labels


def spans_of(row: Row, schema: TaskSchema) -> list[tuple[Span, Span]]:
  """The two spans of every target; one that is alone counts twice. DataError: they do not lie in the text."""
  count, pairs = len(words_of(row, schema.text[0])), []
  for number, target in enumerate(targets_of(row, schema.label), 1):
    first = _span(row, number, target.get("span1"), "span1", count)
    second = target.get("span2")
    pairs.append((first, first if second is None else _span(row, number, second, "span2", count)))
  return pairs


def _span(row: Row, number: int, value: Any, name: str, count: int) -> Span:
  if not isinstance(value, list) or [type(end) for end in value] != [int, int]:
    row.refuse(f"target {number}: {name} is {value!r}; {_FORM}")
  first, behind = value
  if not 0 <= first < behind <= count:
    row.refuse(f"target {number}: {name} is {value!r} in a text of {count} words; {_FORM}")
  return first, behind


def inputs(rows: Sequence[Row], schema: TaskSchema, vocabulary: Vocabulary) -> SpanInputs:
  """What the model of a schema reads of rows; a sentence that is too long is cut around each target.

  Raises:
    DataError: with its place, a row without words, or with a span that is none of its text.
  """
  sentences = [words_of(row, schema.text[0]) for row in rows]
  ids_of = pieces_of(sentences, vocabulary)
  room = schema.max_length - 2
  made, row_of, counts, cut = Examples([], {}, {SPAN: []}), [], [], 0
  for number, (row, words) in enumerate(zip(rows, sentences)):
    pieces = [ids_of[word] for word in words]
    sizes = [len(piece) for piece in pieces]
    cut += sum(sizes) > room
    spans = spans_of(row, schema)
    for first, second in spans:
      shown = _shown(sizes, min(first[0], second[0]), max(first[1], second[1]), room)
      ids, marks = [], [0]
      for word in shown:
        mark = FIRST * (first[0] <= word < first[1]) | SECOND * (second[0] <= word < second[1])
        ids += pieces[word]
        marks += [mark] * sizes[word]
      ids, marks = ids[:room], marks[: room + 1]
      made.ids.append(np.asarray(vocabulary.with_special_ids(ids), np.int32))
      made.token_fields[SPAN].append(np.asarray([*marks, 0], np.int32))
      row_of.append(number)
    counts.append(len(spans))
  return SpanInputs(made, np.asarray(row_of, np.int64), np.asarray(counts, np.int64), cut)


def _shown(sizes: Sequence[int], first: int, behind: int, room: int) -> range:
  """The words around [first, behind) that `room` tokens hold; where it does not hold these, just these."""
  used = sum(sizes[first:behind])
  grew = True
  while grew:
    grew = False
    if first > 0 and used + sizes[first - 1] <= room:
      first -= 1
      used, grew = used + sizes[first], True
    if behind < len(sizes) and used + sizes[behind] <= room:
      used, behind, grew = used + sizes[behind], behind + 1, True
  return range(first, behind)


def join(made: SpanInputs, outputs: np.ndarray) -> list[np.ndarray]:
  """For each row [targets, labels] float32, from [all targets, labels]."""
  return list(_split(made, np.asarray(outputs)))


def _split(made: SpanInputs, outputs: np.ndarray) -> Iterator[np.ndarray]:
  ends = np.cumsum(made.counts)
  for end, count in zip(ends, made.counts):
    yield outputs[end - count : end]
