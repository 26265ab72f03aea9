"""Tokenises sentences of tagged words for an encoder, and reads tags from its outputs. Imports no jax.

Each word is tokenised by itself; the word's output is that at its first token.
"""

import re
from collections.abc import Sequence

import numpy as np

from data.errors import DataError, counted, listed
from data.rows import Row, as_list
from data.vocabulary import Vocabulary
from finetune.own.schema import Inputs, TaskSchema
from finetune.search.examples import Examples

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


def pieces_of(sentences: Sequence[Sequence[str]], vocabulary: Vocabulary) -> list[list[list[int]]]:
  """Returns the ids of each word of each sentence; a word without pieces gets the unknown piece."""
  unknown = [vocabulary.special_ids.unk]
  return [[ids or unknown for ids in words] for words in vocabulary.encode_words(sentences)]


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


def spans(schema: TaskSchema, rows: Sequence[Sequence[int]]) -> list[list[str]]:
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
