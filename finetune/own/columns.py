"""Guesses the columns of text and label in a user's file, and the kind of task. Imports no jax."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from data.errors import ConfigError, DataError, counted, did_you_mean, listed
from data.rows import Row, as_list, datasets
from data.rows.values import ClassNumber, as_number, is_missing
from finetune.own import target_values
from finetune.own.spans import is_targets

# Common names in published data sets, the likeliest first; case does not count.
TEXTS = ("text", "sentence", "content", "review", "comment", "message", "tweet", "body", "document", "title")
WORDS = ("tokens", "words")
PAIRS = (
  ("sentence1", "sentence2"),
  ("premise", "hypothesis"),
  ("question1", "question2"),
  ("text1", "text2"),
  ("text_a", "text_b"),
  ("query", "passage"),
  ("question", "sentence"),
  ("text", "text_pair"),
)
LABELS = ("label", "labels", "class", "category", "categories", "target", "score", "rating", "sentiment")
LABELS += ("tag", "tags", "ner_tags", "intent", "topic", "gold_label")
_OF_TASK = ("inputs", "targets")  # seqio's names of text and label
SEPARATORS = ("|", ";", ",")  # between the labels of a cell
# Whole numbers are classes, as in transformers' run_glue, unless there are more different values than this
# with few rows each: then they are prices, years or counts.
MOST_CLASSES, ROWS_OF_CLASS = 20, 3


@dataclasses.dataclass(frozen=True)
class Columns:
  """The names of a task's text and label columns, and log lines about the guessed ones."""

  text: tuple[str, ...]
  label: str
  lines: tuple[str, ...]


def find(path: str, names: Sequence[str], *, text: str, text_pair: str, label: str) -> Columns:
  """Returns the columns of text and label: the user's, or guesses for '' (a pair only if `text` is '').

  Raises:
    ConfigError: the file lacks a column that the user named.
    DataError: no column fits, or several do.
  """
  for field, name in (("text", text), ("text_pair", text_pair), ("label", label)):
    if name and name not in names:
      raise ConfigError(
        f"data.{field}={name!r}: {path} has no such column{did_you_mean(name, names)}; it has {listed(names)}"
      )
  lines = []
  if set(_OF_TASK) <= set(names) and datasets.kind_of(path) == "seqio":
    text, label = text or _OF_TASK[0], label or _OF_TASK[1]
  if not text:
    texts = _guess_texts(path, names, label)
    lines.append(
      f"{path}: text column: {' and '.join(map(repr, texts))} (--config.data.text=NAME changes it)"
    )
  else:
    texts = (text, text_pair) if text_pair else (text,)
  if not label:
    label = _guess_label(path, names, texts)
    lines.append(f"{path}: label column: {label!r} (--config.data.label=NAME changes it)")
  return Columns(texts, label, tuple(lines))


def _guess_texts(path: str, names: Sequence[str], label: str) -> tuple[str, ...]:
  by_name = {name.lower(): name for name in names if name != label}
  for first, second in PAIRS:
    if first in by_name and second in by_name:
      return by_name[first], by_name[second]
  known = [by_name[name] for name in (*TEXTS, *WORDS) if name in by_name]
  left = [name for name in names if name != label and name.lower() not in LABELS]
  if known or len(left) == 1:
    return ((known or left)[0],)
  raise DataError(
    f"{path}: no column of {listed(names)} is known to be the text; name it, and the second text of a pair:\n"
    "  --config.data.text=NAME\n  --config.data.text_pair=NAME"
  )


def _guess_label(path: str, names: Sequence[str], texts: Sequence[str]) -> str:
  left = [name for name in names if name not in texts]
  known = [name for name in left if name.lower() in LABELS]
  if len(known) == 1 or (not known and len(left) == 1):
    return (known or left)[0]
  which = (
    f"{' or '.join(map(repr, known))} could be" if known else f"no column of {listed(names)} is known as"
  )
  raise DataError(f"{path}: {which} the label; name it:\n  --config.data.label=NAME")


def of_conll(rows: Sequence[Row], given: Any) -> tuple[str, str]:
  """Returns the columns of words and tags in a CoNLL file: `given.text` and `given.label`, or guessed ones.

  Words are in the first column that is not all numbers. Tags are in the last column with tags of spans;
  without one, in the fourth of CoNLL-U's ten, else in the last that is not all '_' or '-'.
  """
  values = {name: {cell for row in rows for cell in row.fields[name]} for name in rows[0].fields}
  words = next((name for name, cells in values.items() if not all(map(str.isdigit, cells))), "1")
  of_spans = [name for name, cells in values.items() if target_values.is_entities(list(cells))]
  tags = [name for name, cells in values.items() if not cells <= {"_", "-"} and name != words]
  last = (of_spans or (["4"] if len(values) == 10 else tags) or [words])[-1]
  return given.text or words, given.label or last


def guess_kind(rows: Sequence[Row], columns: Columns) -> tuple[str, str]:
  """Guesses the kind of task, one of `schema.KINDS`, from the rows' values; also returns the reason."""
  values = [row.fields.get(columns.label) for row in rows]
  if any(is_targets(value) for value in values):
    return "span_pairs", f"{columns.label!r} has spans"
  if _are_lists([row.fields.get(columns.text[0]) for row in rows]):
    return "tagging", f"{columns.text[0]!r} has lists of words"
  if _are_lists(values):
    return "multilabel", f"{columns.label!r} has lists"
  if any(isinstance(value, ClassNumber) for value in values):
    return "classification", f"the file names the classes of {columns.label!r}"
  numbers = [number for value in values if not is_missing(value) and (number := as_number(value)) is not None]
  if numbers and len(numbers) == sum(not is_missing(value) for value in values):
    is_whole = all(math.isfinite(number) and number == int(number) for number in numbers)
    count = len(set(numbers))
    if not is_whole:
      return "regression", f"{columns.label!r} has numbers"
    if count > MOST_CLASSES and len(numbers) < ROWS_OF_CLASS * count:
      return "regression", f"{columns.label!r} has {count} whole numbers in {len(numbers)} rows"
    return "classification", f"{columns.label!r} has {counted(count, 'whole number')}"
  return "classification", f"{columns.label!r} has names"


def _are_lists(values: Sequence[Any]) -> bool:
  """Returns whether a column has lists: one value is a list, or every text spells one."""
  there = [value for value in values if not is_missing(value)]
  return any(isinstance(value, list) for value in there) or (
    bool(there) and all(isinstance(as_list(value), list) for value in there)
  )


def guess_separator(rows: Sequence[Row], label: str) -> str:
  """Guesses the separator between labels of a cell: the first of `SEPARATORS` that any cell has."""
  cells = [value for row in rows if isinstance(value := row.fields.get(label), str) and not as_list(value)]
  return next((sign for sign in SEPARATORS if any(sign in cell for cell in cells)), SEPARATORS[0])


# The `problem_type` in transformers' config.json, which chooses the loss of a model for whole texts.
