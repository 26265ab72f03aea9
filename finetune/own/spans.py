"""Labelled spans of words, single or in pairs: the rows of `data.rows.values`. Imports no jax.

Every target is one example: the sentence's tokens, and a mark at the tokens of each span.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data.rows import Row, as_list
from data.rows.values import Span, targets_of, words_of
from data.vocabulary import Vocabulary
from finetune.own.schema import Inputs, TaskSchema, pieces_of
from finetune.search.examples import Examples

SPAN = "span"  # token field: 1 at tokens of the first span, 2 at those of the second, 3 of both, 0 elsewhere
FIRST, SECOND = 1, 2


def is_targets(value: Any) -> bool:
  """Returns whether a value looks like targets: a list of objects with 'span1'."""
  return any(isinstance(one, dict) and "span1" in one for one in as_list(value) or ())


def labels_of(row: Row, schema: TaskSchema) -> list[str]:
  """Returns the label of every target of a row; DataError: it has none or several, or as in `targets_of`."""
  of_row = []
  for number, target in enumerate(targets_of(row, schema.text[0], schema.label), 1):
    labels = [label.strip() for label in target.labels if label.strip()]
    if len(labels) != 1:
      row.refuse(f"target {number} has {'several labels' if labels else 'no label'}; expected one")
    of_row += labels
  return of_row


def spans_of(row: Row, schema: TaskSchema) -> list[tuple[Span, Span]]:
  """Returns two spans for every target of a row, a single one twice; DataError if outside the text."""
  targets = targets_of(row, schema.text[0], schema.label, has_labels=False)
  return [(target.spans[0], target.spans[-1]) for target in targets]


def inputs(rows: Sequence[Row], schema: TaskSchema, vocabulary: Vocabulary) -> Inputs:
  """Tokenises rows to one model input for each target; a long sentence is truncated around the target.

  Raises:
    DataError: a row has no words, or a span outside its text; the message names the row.
  """
  sentences = [words_of(row, schema.text[0]) for row in rows]
  room = schema.max_length - 2
  made, row_of, counts, cut = Examples([], {}, {SPAN: []}), [], [], 0
  for number, (row, pieces) in enumerate(zip(rows, pieces_of(sentences, vocabulary))):
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
  return Inputs(made, np.asarray(row_of, np.int64), np.asarray(counts, np.int64), cut)


def _shown(sizes: Sequence[int], first: int, behind: int, room: int) -> range:
  """Returns a range of words that fits into `room` tokens if it can; it always includes [first, behind)."""
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


def join(made: Inputs, outputs: Sequence[np.ndarray], schema: TaskSchema) -> list[np.ndarray]:
  """Returns, for each row, the outputs of all its targets: [targets, labels] float32."""
  by_target = np.reshape(np.asarray(outputs, np.float32), (-1, len(schema.labels)))
  return np.split(by_target, np.cumsum(made.counts)[:-1])
