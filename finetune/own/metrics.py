"""Computes the metrics of each kind of task, with scikit-learn, scipy and nervaluate. Imports no jax."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn import metrics as sklearn_metrics

from data import tables
from finetune.own import tagging
from finetune.own.answers import probabilities
from finetune.own.schema import THRESHOLD, TaskSchema
from finetune.papers.glue_metrics import accuracy, pearson, spearman

Outputs = np.ndarray | list[np.ndarray]
ERRORS = ("rmse",)  # metrics in the unit of the targets; all others are fractions
_WIDEST_MATRIX = 10  # classes: more columns do not fit a terminal
_MOST_CONFUSED = 20  # pairs of classes listed instead of a wider matrix


def _is_entities(schema: TaskSchema) -> bool:
  return schema.kind == "tagging" and tagging.is_entities(schema.labels)


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

  right, ours = (tagging.spans(schema, [of_row.tolist() for of_row in part]) for part in (targets, predicted))
  return nervaluate.Evaluator(right, ours, tags=tagging.kinds_of_span(schema), loader="list").evaluate()


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
