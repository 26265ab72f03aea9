"""Rows as inputs of an encoder, its outputs as answers, and their metrics, in training and prediction.

A row becomes one input, or with `long='windows'` several overlapping ones whose outputs are averaged. Metrics
are those of scikit-learn, scipy and nervaluate. Imports no jax.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn import metrics as sklearn_metrics

from data import tables
from data.rows import Row
from data.vocabulary import Vocabulary
from finetune.own import spans, target_values
from finetune.own.schema import THRESHOLD, Inputs, TaskSchema
from finetune.papers.glue_metrics import accuracy, pearson, spearman
from finetune.search.examples import Examples, text_of

PREDICTED, PROBABILITY = "predicted", "probability"  # columns of answers


def inputs(rows: Sequence[Row], schema: TaskSchema, vocabulary: Vocabulary) -> Inputs:
  """Tokenises the texts, words or spans of rows to model inputs, as the task's schema describes.

  Raises:
    DataError: a row has no text, or spans outside its text; the message names the row.
  """
  if schema.is_several:
    return (target_values if schema.kind == "tagging" else spans).inputs(rows, schema, vocabulary)
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
  room -= len(vocabulary.between)
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
    return (target_values if schema.kind == "tagging" else spans).join(made, outputs, schema)
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


def columns_of(schema: TaskSchema) -> dict[str, str]:
  """Returns the columns of `answers` with their types: 'string', 'float64' or a list of either."""
  if schema.is_several:
    return {PREDICTED: "list of string", PROBABILITY: "list of float64"}
  (example,) = answers(schema, np.zeros((1, schema.num_outputs), np.float32))
  kinds = {str: "string", float: "float64", list: "list of string"}
  return {name: kinds[type(value)] for name, value in example.items()}


Outputs = np.ndarray | list[np.ndarray]
ERRORS = ("rmse",)  # metrics in the unit of the targets; all others are fractions
_WIDEST_MATRIX = 10  # classes: more columns do not fit a terminal
_MOST_CONFUSED = 20  # pairs of classes listed instead of a wider matrix


def _is_entities(schema: TaskSchema) -> bool:
  return schema.kind == "tagging" and target_values.is_entities(schema.labels)


def names(schema: TaskSchema) -> tuple[str, ...]:
  """Returns the names of a schema's metrics; the first chooses the best evaluation and the best cell."""
  if _is_entities(schema):
    return "entity_f1", "precision", "recall", "accuracy"
  if schema.kind == "multilabel":
    return "micro_f1", "macro_f1", "average_precision"
  return ("spearman", "pearson", "rmse") if schema.kind == "regression" else ("accuracy", "macro_f1")


def measure(schema: TaskSchema, targets: Outputs, outputs: Outputs) -> dict[str, float]:
  """Returns {metric: value} of a set of rows: fractions, but 'rmse' in the unit of the targets.

  Args:
    outputs: [rows, outputs] float, or for 'tagging' and 'span_pairs' a list; from `answers.join`. If one is
      not finite, all fractions are 0, and 'rmse' is the error of the constant answer 0.
  """
  if not all(np.isfinite(part).all() for part in outputs):
    worst = {"rmse": float(np.sqrt(np.mean(np.square(targets))))} if schema.kind == "regression" else {}
    return dict.fromkeys(names(schema), 0.0) | worst
  if schema.is_several:
    return _of_words(schema, list(targets), list(outputs))
  targets, outputs = np.asarray(targets), np.asarray(outputs)
  if schema.kind == "regression":
    predictions = outputs[:, 0].astype(np.float64)
    error = float(np.sqrt(np.mean(np.square(predictions - targets))))
    return {"spearman": spearman(predictions, targets), "pearson": pearson(predictions, targets)} | {
      "rmse": error
    }
  if schema.kind == "multilabel":
    chances = probabilities(schema, outputs)
    chosen = chances >= THRESHOLD
    averages = [
      sklearn_metrics.average_precision_score(targets[:, label], chances[:, label])
      for label in range(targets.shape[1])
      if targets[:, label].any()
    ]
    return {
      "micro_f1": _f1(targets, chosen, "micro"),
      "macro_f1": _f1(targets, chosen, "macro"),
      "average_precision": float(np.mean(averages)) if averages else 0.0,
    }
  return _of_classes(targets, np.argmax(outputs, axis=1))


def _of_classes(targets: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
  return {"accuracy": accuracy(targets, predicted), "macro_f1": _f1(targets, predicted, "macro")}


def _f1(targets: np.ndarray, predictions: np.ndarray, average: str) -> float:
  return float(sklearn_metrics.f1_score(targets, predictions, average=average, zero_division=0.0))


def _of_words(
  schema: TaskSchema, targets: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> dict[str, float]:
  """Returns scores of entities (kind and both ends must match); without entities, of words or targets."""
  predicted = [np.argmax(of_row, axis=1) for of_row in outputs]
  by_word = _of_classes(np.concatenate(targets), np.concatenate(predicted))
  if not _is_entities(schema):
    return by_word
  found = _entities(schema, targets, predicted)["overall"]["strict"]
  scores = {"entity_f1": found.f1, "precision": found.precision, "recall": found.recall}
  return {name: float(score) for name, score in scores.items()} | {"accuracy": by_word["accuracy"]}


def _entities(schema: TaskSchema, targets: Sequence[np.ndarray], predicted: Sequence[np.ndarray]) -> Any:
  import nervaluate  # here: only tagging needs it

  right, ours = (
    target_values.as_bio(schema, [of_row.tolist() for of_row in part]) for part in (targets, predicted)
  )
  return nervaluate.Evaluator(right, ours, tags=target_values.kinds_of_span(schema), loader="list").evaluate()


def details(schema: TaskSchema, targets: Outputs, outputs: Outputs) -> list[tables.Table]:
  """Returns tables of scores by class and of confused classes; arguments as in `measure`.

  There are none for a regression, nor for outputs that are not finite.
  """
  if schema.kind == "regression" or not all(np.isfinite(part).all() for part in outputs):
    return []
  if schema.kind == "multilabel":
    chosen = probabilities(schema, np.asarray(outputs)) >= THRESHOLD
    return [_by_class(schema.labels, np.asarray(targets).astype(bool), chosen, "rows")]
  if schema.is_several:
    predicted = [np.argmax(of_row, axis=1) for of_row in outputs]
    if _is_entities(schema):
      return [_by_entity(_entities(schema, list(targets), predicted)["entities"])]
    right, ours = np.concatenate(list(targets)), np.concatenate(predicted)
  else:
    right, ours = np.asarray(targets), np.argmax(np.asarray(outputs), axis=1)
  classes = np.arange(len(schema.labels))
  found = [_by_class(schema.labels, right[:, None] == classes, ours[:, None] == classes, schema.things)]
  counts = sklearn_metrics.confusion_matrix(right, ours, labels=classes)
  make = _confusion if len(classes) <= _WIDEST_MATRIX else _most_confused
  return [*found, make(schema.labels, counts)]


def _table(rows: Sequence[tables.Row], things: str) -> tables.Table:
  shown = [tables.percent_column(name, name) for name in ("precision", "recall", "f1")]
  count = tables.Column(things, lambda row: f"{row[things]:,}")
  return tables.Table((tables.text_column("class", "class"), *shown, count), rows)


def _by_class(
  labels: Sequence[str], is_right: np.ndarray, is_chosen: np.ndarray, things: str
) -> tables.Table:
  """Returns precision, recall, F1 and the number of rows of each class, from [rows, labels] bool."""
  precision, recall, f1, support = sklearn_metrics.precision_recall_fscore_support(
    is_right, is_chosen, average=None, zero_division=0.0
  )
  columns = ("class", "precision", "recall", "f1", things)
  rows = [
    dict(zip(columns, (label, float(precision[at]), float(recall[at]), float(f1[at]), int(support[at]))))
    for at, label in enumerate(labels)
  ]
  return _table(rows, things)


def _by_entity(found: Any) -> tables.Table:
  rows = []
  for kind, of_kind in found.items():
    strict = of_kind["strict"]
    scores = {"precision": strict.precision, "recall": strict.recall, "f1": strict.f1}
    rows.append({"class": kind, **scores, "entities": strict.possible})
  return _table(rows, "entities")


def _confusion(labels: Sequence[str], counts: np.ndarray) -> tables.Table:
  """Returns the confusion matrix; its columns have numbers, because ten names do not fit a terminal."""
  rows = [
    {"": f"{number} {label}", **{name: int(count) for name, count in zip(labels, row)}}
    for number, (label, row) in enumerate(zip(labels, counts), 1)
  ]
  columns = [
    tables.Column(f"{number}", lambda row, name=name: f"{row[name]:,}")
    for number, name in enumerate(labels, 1)
  ]
  return tables.Table((tables.text_column("true label / predicted", ""), *columns), rows)


def _most_confused(labels: Sequence[str], counts: np.ndarray) -> tables.Table:
  """Returns the most frequent pairs of true and wrongly predicted class."""
  wrong = counts * (1 - np.eye(len(labels), dtype=counts.dtype))
  order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED]
  pairs = [divmod(int(at), len(labels)) for at in order]
  rows = [
    {"of": labels[one], "for": labels[other], "count": int(wrong[one, other])}
    for one, other in pairs
    if wrong[one, other]
  ]
  columns = (tables.text_column("true label", "of"), tables.text_column("predicted", "for"))
  return tables.Table((*columns, tables.Column("times", lambda row: f"{row['count']:,}")), rows)
