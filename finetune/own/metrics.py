"""How good a model's outputs are, by kind of task, through scikit-learn and scipy. Imports no jax."""

from collections.abc import Sequence

import numpy as np
from sklearn import metrics as sklearn_metrics

from data import tables
from finetune.own.answers import probabilities
from finetune.own.schema import THRESHOLD, TaskSchema
from finetune.papers.glue_metrics import accuracy, pearson, spearman

# What is reported of a kind; by the first a run's best evaluation and the best cell are chosen.
METRICS = {
  "classification": ("accuracy", "macro_f1"),
  "multilabel": ("micro_f1", "macro_f1", "average_precision"),
  "regression": ("spearman", "pearson", "rmse"),
}
ERRORS = ("rmse",)  # metrics that are no fractions
_MOST_CONFUSED = 20  # a larger matrix is not read by anybody


def measure(schema: TaskSchema, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
  """{metric: value} of the rows of a set, fractions but for 'rmse', which has the unit of the targets.

  Args:
    targets: of `targets.targets`.
    outputs: [rows, outputs] float, of `answers.join`. Where they are not finite all fractions are 0, and the
      error is that of answering 0.
  """
  if not np.isfinite(outputs).all():
    worst = {"rmse": float(np.sqrt(np.mean(np.square(targets))))} if schema.kind == "regression" else {}
    return dict.fromkeys(METRICS[schema.kind], 0.0) | worst
  if schema.kind == "regression":
    predictions = outputs[:, 0].astype(np.float64)
    error = float(np.sqrt(np.mean(np.square(predictions - targets))))
    return {
      "spearman": spearman(predictions, targets),
      "pearson": pearson(predictions, targets),
      "rmse": error,
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
  predicted = np.argmax(outputs, axis=1)
  return {"accuracy": accuracy(targets, predicted), "macro_f1": _f1(targets, predicted, "macro")}


def _f1(targets: np.ndarray, predictions: np.ndarray, average: str) -> float:
  return float(sklearn_metrics.f1_score(targets, predictions, average=average, zero_division=0.0))


def details(schema: TaskSchema, targets: np.ndarray, outputs: np.ndarray) -> list[tables.Table]:
  """Tables for people, of finite outputs: a row for each class, and which class was taken for which.

  Arguments as of `measure`; a regression has none.
  """
  if schema.kind == "regression":
    return []
  if schema.kind == "multilabel":
    return [_by_class(schema.labels, targets.astype(bool), probabilities(schema, outputs) >= THRESHOLD)]
  classes = np.arange(len(schema.labels))
  predicted = np.argmax(outputs, axis=1)
  found = [_by_class(schema.labels, targets[:, None] == classes, predicted[:, None] == classes)]
  if len(classes) <= _MOST_CONFUSED:
    counts = sklearn_metrics.confusion_matrix(targets, predicted, labels=classes)
    found.append(_confusion(schema.labels, counts))
  return found


def _by_class(labels: Sequence[str], is_right: np.ndarray, is_chosen: np.ndarray) -> tables.Table:
  """From [rows, labels] bool: precision, recall, F1 and the number of rows of each."""
  precision, recall, f1, support = sklearn_metrics.precision_recall_fscore_support(
    is_right, is_chosen, average=None, zero_division=0.0
  )
  names = ("class", "precision", "recall", "f1", "rows")
  rows = [
    dict(zip(names, (label, float(precision[at]), float(recall[at]), float(f1[at]), int(support[at]))))
    for at, label in enumerate(labels)
  ]
  shown = [tables.percent_column(name, name) for name in names[1:4]]
  return tables.Table(
    (tables.text_column("class", "class"), *shown, tables.text_column("rows", "rows")), rows
  )


def _confusion(labels: Sequence[str], counts: np.ndarray) -> tables.Table:
  rows = [
    {"": label, **{name: int(count) for name, count in zip(labels, row)}}
    for label, row in zip(labels, counts)
  ]
  columns = [tables.Column(f"taken for {name}", lambda row, name=name: f"{row[name]:,}") for name in labels]
  return tables.Table((tables.text_column("rows of", ""), *columns), rows)
