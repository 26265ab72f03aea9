"""Reads a user's files as training and development sets; guesses columns and kind. Imports no jax."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from data.errors import ConfigError, DataError, counted, did_you_mean, listed
from data.glue import fraction_rows
from data.rows import Row, as_list, conll, datasets, values
from data.rows.values import ClassNumber, as_number, is_missing
from data.vocabulary import Vocabulary
from finetune.own import answers, spans, target_values
from finetune.own.schema import Inputs, TaskSchema
from finetune.own.spans import is_targets
from finetune.own.target_values import (
  alike,
  check_label,
  find_labels,
  has_text,
  refuse_multi_hot,
  several_of,
  shown_text,
  shown_texts,
  targets,
)
from finetune.search import examples as user_examples
from finetune.search.examples import Examples
from pretrain.export.task_fields import CHECKED_ROWS

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


_TARGETS = "targets"  # the column of spans with labels in files of edge probing
_LOOKED_AT = 2_000  # rows by which kind and separator are guessed


@dataclasses.dataclass(frozen=True)
class Part:
  """The training or development set of a user's files: tokenised rows and their targets."""

  inputs: Inputs
  targets: np.ndarray | list[np.ndarray]  # by row, from `targets.targets`

  def examples(self, *, scale: float, shift: float) -> Examples:
    """Returns the inputs with 'labels'; numbers become (number - shift) / scale, float32."""
    examples = self.inputs.examples
    if isinstance(self.targets, list) and target_values.WORD not in examples.token_fields:
      return examples._replace(fields={"labels": self.classes})
    if isinstance(self.targets, list):
      by_token = [
        np.where(words > 0, self.targets[row][words - 1], 0)
        for row, words in zip(self.inputs.row, examples.token_fields[target_values.WORD])
      ]
      return examples._replace(token_fields=examples.token_fields | {"labels": by_token})
    labels = self.targets[self.inputs.row]
    if labels.dtype == np.float64:
      labels = np.asarray(labels - shift, np.float32) / np.float32(scale)
    return examples._replace(fields={"labels": labels})

  @property
  def classes(self) -> np.ndarray:
    """Returns the targets of all rows, or of their words or spans, as one array."""
    return np.concatenate(self.targets) if isinstance(self.targets, list) else self.targets

  def counts(self, labels: int) -> np.ndarray:
    """Returns how often each of so many labels occurs."""
    found = self.classes
    return np.bincount(found, minlength=labels) if found.ndim == 1 else found.sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Task:
  """The schema and the data of a user's files."""

  schema: TaskSchema
  train: Part
  dev: Part
  scale: float  # a regression's targets are (number - shift) / scale
  shift: float
  first: list[list[str]]  # the texts of the first development rows, by which an export is checked
  digests: dict[str, str]  # {path: sha256}
  lines: list[str]  # log lines: guessed columns, sizes, truncated texts


def load(config: Any, vocabulary: Vocabulary, *, max_length: int, download: bool = False) -> Task:
  """Reads and tokenises the files of a config of kind 'own'.

  Raises:
    ConfigError: a file lacks a named column, or a field does not apply to the kind of task.
    DataError: a file or a row is invalid; the message names it.
  """
  data, path = config.data, config.data.train_file
  train, names, digest = user_examples.read_file(path, "train", config, download)
  if not train:
    raise DataError(f"{path}: no rows below the header; give a file with texts and labels")
  text, label = (data.text, data.label) if not conll.kind_of(path) else of_conll(train[:_LOOKED_AT], data)
  if not label and any(spans.is_targets(row.fields.get(_TARGETS)) for row in train[:_LOOKED_AT]):
    label = _TARGETS
  chosen = find(path, names, text=text, text_pair=data.text_pair, label=label)
  lines = list(chosen.lines)
  if conll.kind_of(path):
    lines.append(f"{path}: words: column {text}, tags: column {label} (data.text and data.label change them)")
  schema = _schema(config, train, chosen, lines, max_length)
  digests, of_file = {path: digest}, {path: train}
  train = _with_text(train, schema, data.empty, lines)
  if data.dev_file:
    dev, _, digests[data.dev_file] = user_examples.read_file(data.dev_file, "validation", config, download)
    of_file[data.dev_file] = dev
    dev = _with_text(dev, schema, data.empty, lines)
  else:
    train, dev, rare = _held_out(train, schema, data.dev_fraction, path)
    if rare:
      lines.append(f"own: {counted(rare, 'row')} kept in training: no other training row has the label")
  counts = {name: sum(row.replaced for row in read) for name, read in of_file.items()}
  lines += [values.replaced(name, count) for name, count in counts.items() if count]
  whole = train
  if data.train_rows and data.train_rows < len(train):
    drawn = fraction_rows(len(train), data.train_rows / len(train), config.seed)
    train = [train[row] for row in drawn]
  if not dev:
    raise DataError(f"{data.dev_file}: no rows below the header; give a file with texts and labels")
  if schema.kind != "regression":
    schema = dataclasses.replace(schema, labels=_labels(data.labels, schema, train, whole))
  # Labels first: their errors are reported before the slow tokenisation.
  wanted = [targets(part, schema) for part in (train, dev)]
  parts = [Part(answers.inputs(part, schema, vocabulary), of) for part, of in zip((train, dev), wanted)]
  scale, shift = _scale(
    config.own.targets, parts[0].classes, f"{data.train_file}: {schema.label!r}", schema.kind
  )
  lines += _lines(schema, parts, path, data.dev_file)
  first = [shown_texts(row, schema) for row in dev[:CHECKED_ROWS]]
  return Task(schema, parts[0], parts[1], scale, shift, first, digests, lines)


def _with_text(part: Sequence[Row], schema: TaskSchema, empty: str, lines: list[str]) -> list[Row]:
  """Returns the rows with a text; other rows are a DataError, unless `empty` is 'skip'."""
  without = [row for row in part if not has_text(row, schema)]
  if not without:
    return list(part)
  of_all = f"rows with an empty text: {len(without):,} of {len(part):,}"
  shown = ", ".join(f"{row.number:,}" for row in without[:5]) + (", ..." if len(without) > 5 else "")
  if empty == "refuse":
    names = " or ".join(map(repr, schema.text))
    without[0].refuse(
      f"{names} is empty; {of_all} ({without[0].unit} {shown}); add the texts, or skip these rows:\n"
      "  --config.data.empty=skip"
    )
  lines.append(f"{without[0].source}: skipped {of_all} ({without[0].unit} {shown})")
  return [row for row in part if has_text(row, schema)]


def _labels(named: str, schema: TaskSchema, train: Sequence[Row], whole: Sequence[Row]) -> tuple[str, ...]:
  """Returns the labels `named` by the user, or else those of `train`, then of the `whole` training set.

  A label that no drawn row has is kept: development rows may have it.
  """
  in_order = tuple(part.strip() for part in named.split(",") if part.strip())
  schema = dataclasses.replace(schema, labels=in_order)
  if schema.kind == "multilabel" and not in_order:
    refuse_multi_hot(whole, schema)
  found = [label for rows_of in (train, whole) for label in find_labels(rows_of, schema, given=in_order)]
  return tuple(dict.fromkeys(found))


def _schema(
  config: Any, first: Sequence[Row], found: Columns, lines: list[str], max_length: int
) -> TaskSchema:
  """Returns the task schema of a config, still without labels; adds lines about guesses to `lines`."""
  kind = config.own.task
  if kind == "auto":
    kind, why = guess_kind(first, found)
    lines.append(f"own.task={kind}: {why}")
  separator = ""
  if kind == "multilabel":
    separator = config.data.separator or guess_separator(first, found.label)
    if not config.data.separator and any(as_list(row.fields.get(found.label, [])) is None for row in first):
      lines.append(f"separator of several labels in a cell: {separator!r} (data.separator changes it)")
  own = config.own
  if kind == "regression" and (own.class_weights != "none" or own.label_smoothing or config.data.labels):
    raise ConfigError(
      "own.task='regression' has no classes: leave out own.class_weights, own.label_smoothing and data.labels"
    )
  return TaskSchema(kind, found.text, found.label, (), own.pooling, max_length, config.data.long, separator)


def _held_out(
  train: Sequence[Row], schema: TaskSchema, fraction: float, path: str
) -> tuple[list[Row], list[Row], int]:
  """Splits `train` into training and held-out rows; also counts the rows not held out for a rare label."""
  for row in train:
    check_label(row, schema)  # an invalid row is reported before an unsuitable fraction
  shown = [shown_text(row, schema) for row in train]
  is_out = [user_examples.is_held_out(text, fraction) for text in shown]
  rare = 0
  if schema.kind != "regression":
    known = {label for row, out in zip(train, is_out) if not out for label in several_of(row, schema)}
    for at in [at for at, out in enumerate(is_out) if out]:
      labels = several_of(train[at], schema)
      if not known.issuperset(labels):
        is_out[at] = False
        rare += 1
        known.update(labels)
    kept = {text for text, out in zip(shown, is_out) if not out}
    is_out = [out and text not in kept for text, out in zip(shown, is_out)]
  return *user_examples.split_rows(train, is_out, path, fraction), rare


def _scale(how: str, numbers: np.ndarray, where: str, kind: str) -> tuple[float, float]:
  if kind != "regression":
    return 1.0, 0.0
  if how == "largest":
    return float(np.abs(numbers).max()) or 1.0, 0.0
  deviation = float(np.std(numbers))
  if numbers.min() == numbers.max():  # the deviation of equal numbers may be 1e-16
    raise DataError(f"{where}: all training rows have the number {numbers[0]:g}; nothing to learn")
  return deviation, float(np.mean(numbers))


def _lines(schema: TaskSchema, parts: Sequence[Part], path: str, dev_file: str) -> list[str]:
  train, dev = parts
  where = f"from {dev_file}" if dev_file else "held out by a hash of the text"
  lines = [
    f"own: {counted(len(train.targets), 'training row')} from {path}, "
    f"{counted(len(dev.targets), 'development row')} {where}"
  ]
  if schema.kind == "regression":
    lines.append(f"own: numbers from {train.classes.min():g} to {train.classes.max():g}")
  else:
    lines += [
      f"own: labels {' and '.join(map(ascii, group))} look alike but count as different; if they mean the "
      "same, spell them the same"
      for group in alike(schema.labels)
    ]
    counts = train.counts(len(schema.labels))
    shown = [f"{label} {count:,.0f}" for label, count in itertools.islice(zip(schema.labels, counts), 12)]
    more = f" and {len(schema.labels) - 12:,} more" if len(schema.labels) > 12 else ""
    lines.append(
      f"own: {len(schema.labels):,} labels with their training {schema.things}: {', '.join(shown)}{more}"
    )
  for name, part in (("train", train), ("dev", dev)):
    count, windows = len(part.targets), len(part.inputs.row)
    if part.inputs.cut:
      lines.append(
        f"own: truncated to {schema.max_length} tokens: {part.inputs.cut:,} of {count:,} {name} texts"
        + ("" if schema.kind == "span_pairs" else " (--config.data.long=windows reads the whole texts)")
      )
    if windows > count and schema.kind != "span_pairs":
      lines.append(f"own: {counted(count, f'{name} text')} in {windows:,} windows")
  return lines
