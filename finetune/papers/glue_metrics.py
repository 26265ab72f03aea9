"""Computes the metrics of the GLUE tasks that the papers report, as fractions, with scikit-learn and scipy.

An undefined score, such as the correlation of constant predictions, is 0, so that a search can rank it.
"""

from collections.abc import Mapping

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from data.errors import DivergedError

# {task: its metrics}; the first is that of the papers' tables (COCO-LM table 1, AMOS table 1).
METRICS: dict[str, tuple[str, ...]] = {
  "mnli": ("accuracy",),
  "qqp": ("accuracy", "f1"),
  "qnli": ("accuracy",),
  "sst2": ("accuracy",),
  "cola": ("matthews", "accuracy"),
  "rte": ("accuracy",),
  "mrpc": ("accuracy", "f1"),
  "stsb": ("spearman", "pearson"),
  "wnli": ("accuracy",),
}
# TACO reports F1 for these tasks. For CoLA its text says accuracy, but its numbers can only be Matthews'.
_TACO_MAIN = {"qqp": "f1", "mrpc": "f1"}
AVERAGED = tuple(task for task in METRICS if task != "wnli")  # MNLI counts by its matched half
# The papers' names of the tasks, in the order of their tables.
NAMES = {
  "mnli": "MNLI-m",
  "qqp": "QQP",
  "qnli": "QNLI",
  "sst2": "SST-2",
  "cola": "CoLA",
  "rte": "RTE",
  "mrpc": "MRPC",
  "stsb": "STS-B",
  "wnli": "WNLI",
  "snli": "SNLI",
}
# {task: {development split: suffix of a metric's name in a record}}.
DEV_SPLITS = {"mnli": {"dev_matched": "", "dev_mismatched": "_mm"}}
MISMATCHED = "accuracy_mm"  # name of the metric of MNLI's mismatched half in a record


def shown_task(task: str, metric: str) -> str:
  """Returns a task's name in the papers; 'MNLI-mm' for a metric of MNLI's mismatched half."""
  return "MNLI-mm" if metric == MISMATCHED else NAMES.get(task, task)


def shown_metric(metric: str) -> str:
  """Returns a metric's name without MNLI's half, which `shown_task` shows."""
  return "accuracy" if metric == MISMATCHED else metric


def main_metric(task: str, protocol: str) -> str:
  """Returns the metric by which a protocol ('coco_lm', 'amos', 'taco') compares models on a task."""
  names = METRICS[task]
  return _TACO_MAIN.get(task, names[0]) if protocol == "taco" else names[0]


def score(task: str, outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Computes the scores of one GLUE evaluation set as {metric: value}, the papers' metric first.

  Outputs are [examples, classes] float logits, labels [examples] int classes from 0; for STS-B [examples, 1]
  float predictions and [examples] float targets, on any scale. Accuracy takes the class of the largest logit,
  the first of equal ones. With two classes F1 and Matthews' correlation take class 1 for equal logits, as the
  official criterion does.

  Raises:
    DivergedError: an output is not finite.

  Source: COCO-LM fairseq/criterions/sentence_prediction.py, huggingface/utils_for_glue.py.
  """
  names = METRICS[task]
  outputs, labels = np.asarray(outputs), np.asarray(labels)
  if not np.isfinite(outputs).all():
    row = int(np.argmin(np.isfinite(outputs).all(axis=1)))
    raise DivergedError(f"{task}: output {row} of the model is not finite; lower the learning rate")
  if task == "stsb":
    return {"spearman": spearman(outputs[:, 0], labels), "pearson": pearson(outputs[:, 0], labels)}
  # Only tasks of two classes have a metric that reads this.
  positive = (outputs[:, 0] <= outputs[:, 1]).astype(np.int32)
  functions = {
    "accuracy": lambda: accuracy(labels, np.argmax(outputs, axis=1)),
    "f1": lambda: f1(labels, positive),
    "matthews": lambda: matthews(labels, positive),
  }
  return {name: functions[name]() for name in names}


def score_of_run(task: str, outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns the scores of a run in a search; all are 0 if an output is not finite."""
  try:
    return score(task, outputs, labels)
  except DivergedError:
    return dict.fromkeys(METRICS[task], 0.0)


def average(scores: Mapping[str, float]) -> float:
  """Returns the mean of {task: score} over the eight tasks of `AVERAGED`; none may be missing."""
  return float(np.mean([scores[task] for task in AVERAGED]))


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Returns the fraction of correct [examples] int predictions."""
  return float(sklearn_metrics.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Returns F1 of class 1 of [examples] int; 0 if neither labels nor predictions have class 1."""
  return float(sklearn_metrics.f1_score(labels, predictions, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Returns Matthews' correlation of [examples] int; 0 if either is constant."""
  if _is_constant(labels) or _is_constant(predictions):
    return 0.0
  return float(sklearn_metrics.matthews_corrcoef(labels, predictions))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
  """Returns Pearson's correlation of [examples] float; 0 if either is constant."""
  if _is_constant(x) or _is_constant(y):
    return 0.0
  # In float32 a small spread about a large mean would be lost.
  return float(stats.pearsonr(np.asarray(x, np.float64), np.asarray(y, np.float64)).statistic)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
  """Returns Spearman's correlation of [examples] float, ties at their mean rank; 0 if either is constant."""
  if _is_constant(x) or _is_constant(y):
    return 0.0
  return float(stats.spearmanr(x, y).statistic)


def _is_constant(x: np.ndarray) -> bool:
  return bool(np.all(np.asarray(x) == np.asarray(x)[0]))
