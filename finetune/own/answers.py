"""Turns rows into inputs of an encoder, and its outputs into answers, in training and prediction.

A row becomes one input, or with `long='windows'` several overlapping ones whose outputs are averaged. Imports
no jax.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data.rows import Row
from data.vocabulary import Vocabulary
from finetune.own import spans, tagging
from finetune.own.schema import THRESHOLD, Inputs, TaskSchema
from finetune.search.examples import Examples
from finetune.search.user_file import text_of

PREDICTED, PROBABILITY = "predicted", "probability"  # columns of answers


def inputs(rows: Sequence[Row], schema: TaskSchema, vocabulary: Vocabulary) -> Inputs:
  """Tokenises the texts, words or spans of rows to model inputs, as the task's schema describes.

  Raises:
    DataError: a row has no text, or spans outside its text; the message names the row.
  """
  if schema.is_several:
    return (tagging if schema.kind == "tagging" else spans).inputs(rows, schema, vocabulary)
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
  return Inputs(Examples(ids, {}, {}), np.asarray(row_of, np.int64), np.ones(len(rows), np.int64), cut)


def _windows(text: Sequence[int], pair: Sequence[int] | None, max_length: int, vocabulary: Vocabulary):
  """Cuts a row's text into overlapping inputs; each starts at the middle of the one before.

  Of a pair the longer text is cut; every input has the other one, truncated to half of the room.
  """
  room = max_length - 2
  if pair is None:
    for start in _starts(len(text), room):
      yield vocabulary.with_special_ids(text[start : start + room])
    return
  room -= vocabulary.separators
  short, whole = sorted((text, pair), key=len)
  short = short[: room // 2]
  room -= len(short)
  for start in _starts(len(whole), room):
    piece = whole[start : start + room]
    yield vocabulary.with_special_ids(*((short, piece) if whole is pair else (piece, short)))


def _starts(total: int, room: int) -> range:
  """Returns the starts of windows of `room` tokens that cover `total` tokens and overlap by half."""
  step = max(room // 2, 1)
  return range(0, max(total - room + step, 1), step)


def join(made: Inputs, outputs: Sequence[np.ndarray], schema: TaskSchema) -> np.ndarray | list[np.ndarray]:
  """Returns one output per row, the mean over the row's inputs: [rows, outputs] float32.

  For 'tagging' and 'span_pairs': a list with [words or targets, labels] for each row.
  """
  if schema.is_several:
    return (tagging if schema.kind == "tagging" else spans).join(made, outputs, schema)
  stacked = np.stack(outputs)
  if len(made.counts) == len(stacked):
    return stacked
  total = np.zeros((len(made.counts), stacked.shape[1]), np.float64)
  np.add.at(total, made.row, stacked)
  return (total / np.bincount(made.row)[:, None]).astype(np.float32)


def probabilities(schema: TaskSchema, outputs: np.ndarray) -> np.ndarray:
  """Returns probabilities [..., labels] float64 of logits: a softmax, or for 'multilabel' a sigmoid."""
  logits = outputs.astype(np.float64)
  if schema.kind == "multilabel":
    return np.exp(-np.logaddexp(0.0, -logits))
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)


def answers(schema: TaskSchema, outputs: np.ndarray | Sequence[np.ndarray]) -> list[dict[str, Any]]:
  """Returns {column: value} for each row of the outputs of `join`.

  'predicted' is the label, the number, or the list of labels. Classes also have 'probability' and, for each
  label, 'probability LABEL'. Words and targets have a list of labels and a list of probabilities.
  """
  if schema.kind == "regression":
    return [{PREDICTED: float(value)} for value in np.asarray(outputs)[:, 0]]
  made = []
  for row in outputs:
    chances = probabilities(schema, row)
    if schema.is_several:
      best = [schema.labels[at] for at in np.argmax(row, axis=1)]
      made.append({PREDICTED: best, PROBABILITY: [float(chance) for chance in chances.max(axis=1)]})
      continue
    each = {f"{PROBABILITY} {label}": float(value) for label, value in zip(schema.labels, chances)}
    if schema.kind == "multilabel":
      chosen = [label for label, value in zip(schema.labels, chances) if value >= THRESHOLD]
      made.append({PREDICTED: chosen} | each)
    else:
      best = int(np.argmax(chances))
      made.append({PREDICTED: schema.labels[best], PROBABILITY: float(chances[best])} | each)
  return made


def columns(schema: TaskSchema) -> dict[str, str]:
  """Returns the columns of `answers` with their types: 'string', 'float64' or a list of either."""
  if schema.is_several:
    return {PREDICTED: "list of string", PROBABILITY: "list of float64"}
  (example,) = answers(schema, np.zeros((1, schema.num_outputs), np.float32))
  kinds = {str: "string", float: "float64", list: "list of string"}
  return {name: kinds[type(value)] for name, value in example.items()}
