"""From rows to what an encoder reads, and from what it gives to answers, for training and prediction alike.

A row becomes one input, or with `long='windows'` several that overlap, whose outputs are averaged. Imports no
jax.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from data.rows import Row
from data.vocabulary import Vocabulary
from finetune.own.chances import PREDICTED, PROBABILITY, probabilities
from finetune.own.schema import THRESHOLD, TaskSchema
from finetune.own.targets import text_of
from finetune.search.examples import Examples


class Inputs(NamedTuple):
  """Rows as an encoder reads them."""

  examples: Examples  # the inputs, without fields: ids with special ones
  row: np.ndarray  # [inputs] int64, increasing: which of the rows each is of
  cut: int  # how many rows lost tokens at their end


def inputs(rows: Sequence[Row], schema: TaskSchema, vocabulary: Vocabulary) -> Inputs:
  """What the model of a schema reads of rows.

  Raises:
    DataError: with its place, a row without one of the texts.
  """
  texts = [[text_of(row, column) for row in rows] for column in schema.text]
  first, *others = (vocabulary.encode_batch(column) for column in texts)
  ids: list[np.ndarray] = []
  row_of: list[int] = []
  cut = 0
  for number, text in enumerate(first):
    pair = others[0][number] if others else None
    whole = vocabulary.with_special_ids(text, pair)
    if schema.long == "windows":
      pieces = list(_windows(text, pair, schema.max_length, vocabulary))
    else:
      pieces = [vocabulary.with_special_ids(text, pair, max_length=schema.max_length)]
      cut += len(pieces[0]) < len(whole)
    ids += [np.asarray(piece, np.int32) for piece in pieces]
    row_of += [number] * len(pieces)
  return Inputs(Examples(ids, {}, {}), np.asarray(row_of, np.int64), cut)


def _windows(text: Sequence[int], pair: Sequence[int] | None, max_length: int, vocabulary: Vocabulary):
  """Inputs that hold all of the last text, each beginning at the middle of the one before.

  Of a pair the first text stands in each of them, cut to half of the room.
  """
  room = max_length - 2
  if pair is None:
    for start in _starts(len(text), room):
      yield vocabulary.with_special_ids(text[start : start + room])
    return
  room -= vocabulary.separators
  text = text[: max(room // 2, room - len(pair))]
  room -= len(text)
  for start in _starts(len(pair), room):
    yield vocabulary.with_special_ids(text, pair[start : start + room])


def _starts(total: int, room: int) -> range:
  """Where windows of `room` tokens begin; the last is the first that reaches the end of `total` tokens."""
  step = max(room // 2, 1)
  return range(0, max(total - room + step, 1), step)


def join(made: Inputs, outputs: np.ndarray) -> np.ndarray:
  """[rows, outputs] float32: the mean of the [inputs, outputs] of each row."""
  counts = np.bincount(made.row)
  if len(counts) == len(outputs):
    return outputs
  total = np.zeros((len(counts), outputs.shape[1]), np.float64)
  np.add.at(total, made.row, outputs)
  return (total / counts[:, None]).astype(np.float32)


def answers(schema: TaskSchema, outputs: np.ndarray) -> list[dict[str, Any]]:
  """For each row {column: value} from its [rows, outputs] of `join`.

  'predicted' is the label, the number, or the list of labels; then come 'probability' of a class and
  'probability LABEL' of each label.
  """
  if schema.kind == "regression":
    return [{PREDICTED: float(value)} for value in outputs[:, 0]]
  made = []
  for row in probabilities(schema, outputs):
    each = {f"{PROBABILITY} {label}": float(value) for label, value in zip(schema.labels, row)}
    if schema.kind == "multilabel":
      chosen = [label for label, value in zip(schema.labels, row) if value >= THRESHOLD]
      made.append({PREDICTED: chosen} | each)
    else:
      best = int(np.argmax(row))
      made.append({PREDICTED: schema.labels[best], PROBABILITY: float(row[best])} | each)
  return made
