"""Metrics of the GLUE tasks, as fractions, by scikit-learn and scipy, and the papers' scores beside ours.

An undefined score, such as the correlation of constant predictions, is 0, so that a search can rank it.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


COLUMNS = ("mnli", "mnli_mm", "qqp", "qnli", "sst2", "cola", "rte", "mrpc", "stsb")


class Reference(NamedTuple):
  """A model's scores in one row of a paper's table."""

  model: str  # such as 'COCO-LM base'
  source: str  # such as 'COCO-LM table 1'
  # {column: fraction} by the paper's metric of the task; columns that the paper does not give are missing.
  # The columns are `COLUMNS`, and 'squad_em' and 'squad_f1' of SQuAD 2.0 with the best threshold.
  scores: dict[str, float]
  average: float | None  # as printed; None: not printed
  averages_mismatched: bool = False  # whether `average` is over nine scores, with MNLI's mismatched half

  def average_of_eight(self) -> float | None:
    """Returns the mean over eight tasks, as printed if the paper prints it; None if a score is missing."""
    if any(task not in self.scores for task in AVERAGED):
      return None
    if self.average is not None and not self.averages_mismatched:
      return self.average
    return float(np.mean([self.scores[task] for task in AVERAGED]))


# recipe | model | MNLI m/mm, QQP, QNLI, SST-2, CoLA, RTE, MRPC, STS-B, average, SQuAD EM/F1; '-': not given.
# COCO-LM's authors trained the first RoBERTa and ELECTRA themselves. TACO's tables have another order of
# tasks, and F1 for QQP and MRPC; its table 3 has no mismatched half.
_TABLES = {
  "COCO-LM table 1": """
  bert_base               | BERT base       | 84.5/-    91.3 91.7 93.2 58.9 68.6 87.3 89.5 83.1 73.7/76.3
  roberta_base            | RoBERTa base    | 85.8/85.5 91.3 92.0 93.7 60.1 68.2 87.3 88.5 83.3 77.7/80.5
  electra_base            | ELECTRA base    | 86.9/86.7 91.9 92.6 93.6 66.2 75.1 88.2 89.7 85.5 79.7/82.6
  electra_google_base     | ELECTRA (Google) | 86.0/85.3 90.0 91.9 93.4 64.3 70.8 84.9 89.1 83.7 80.5/83.3
  coco_lm_base            | COCO-LM base    | 88.5/88.3 92.0 93.1 93.2 63.9 84.8 91.4 90.3 87.2 82.4/85.2
  coco_lm_base_plus_plus  | COCO-LM base++  | 90.2/90.0 92.2 94.2 94.6 67.3 87.4 91.2 91.8 88.6 85.4/88.1
  coco_lm_large_plus_plus | COCO-LM large++ | 91.4/91.6 92.8 95.7 96.9 73.9 91.0 92.2 92.7 90.8 88.2/91.0
  roberta_base_plus_plus  | RoBERTa base++  | 87.6/-    91.9 92.8 94.8 63.6 78.7 90.2 91.2 86.4 80.5/83.7
  roberta_large_plus_plus | RoBERTa large++ | 90.2/90.2 92.2 94.7 96.4 68.0 86.6 90.9 92.4 88.9 86.5/89.4
  electra_large_plus_plus | ELECTRA large++ | 90.9/-    92.4 95.0 96.9 69.1 88.0 90.8 92.6 89.4 88.0/90.6""",
  "AMOS table 1": """
  amos_base               | AMOS base       | 88.9/88.7 92.3 93.6 94.2 70.7 86.6 90.9 91.6 88.6 84.2/87.2
  amos_base_plus_plus     | AMOS base++     | 90.5/90.4 92.4 94.4 95.5 71.8 86.6 91.7 92.0 89.4 85.0/87.9""",
  "TACO table 1": """
  taco_mlm_small          | MLM-250k small  | 76.9/77.4 85.7 86.2 89.0 28.8 59.6 85.9 85.6 75.0 -/-
  taco_small              | TACO-250k small | 77.9/78.4 86.1 86.5 88.9 34.2 59.5 88.1 86.1 76.2 -/-""",
  "TACO table 3": """
  taco_mlm_base           | MLM-500k base   | 84.2/-    87.9 91.1 92.1 51.1 63.4 89.8 87.9 80.9 -/-
  taco_base               | TACO-500k base  | 84.6/-    88.1 90.8 92.3 53.4 66.3 90.7 88.5 81.8 -/-""",
}
# {recipe: baselines of the same table and setting}.
_BASELINES = {
  "coco_lm_base": ("roberta_base", "electra_base"),
  "coco_lm_base_plus_plus": ("roberta_base_plus_plus",),
  "coco_lm_large_plus_plus": ("roberta_large_plus_plus", "electra_large_plus_plus"),
  "amos_base": ("electra_base", "coco_lm_base"),
  "amos_base_plus_plus": ("roberta_base_plus_plus", "coco_lm_base_plus_plus"),
  "taco_small": ("taco_mlm_small",),
  "taco_base": ("taco_mlm_base",),
}


def reference_rows(recipe: str, protocol: str) -> list[Reference]:
  """Returns the paper's row of a recipe's model, then those of its baselines; [] if the papers have none.

  TACO's tables, with their own rows for BERT, are used for protocol 'taco' only, because its metrics differ.
  """
  if protocol == "taco":
    recipe = recipe.replace("bert_", "taco_mlm_") if recipe.startswith("bert_") else recipe
  rows = _rows()
  if recipe not in rows or recipe.startswith("taco_") != (protocol == "taco"):
    return []
  return [rows[name] for name in (recipe, *_BASELINES.get(recipe, ()))]


def scores_beside(references: Sequence[Reference], column: str) -> dict[str, float]:
  """Returns {model: score} in a column of the papers' tables, without models that lack it."""
  return {reference.model: reference.scores[column] for reference in references if column in reference.scores}


def source_notes(references: Sequence[Reference]) -> list[str]:
  """Returns a sentence for each source table, with the names of the models from it."""
  models: dict[str, list[str]] = {}
  for reference in references:
    models.setdefault(reference.source, []).append(reference.model)
  return [f"Papers' dev scores: {', '.join(names)} from {source}." for source, names in models.items()]


def known_recipes(protocol: str) -> list[str]:
  """Returns the recipes for which the papers report scores by this protocol."""
  return [recipe for recipe in _rows() if reference_rows(recipe, protocol)]


@functools.cache
def _rows() -> dict[str, Reference]:
  rows = {}
  for source, table in _TABLES.items():
    for line in table.strip().splitlines():
      recipe, model, numbers = (cell.strip() for cell in line.split("|"))
      rows[recipe] = _reference(model, source, numbers)
  return rows


def _reference(model: str, source: str, numbers: str) -> Reference:
  first, *middle, average, last = numbers.split()
  names = (*COLUMNS, "squad_em", "squad_f1")
  values = [*first.split("/"), *middle, *last.split("/")]
  # Rounded: a hundredth of the decimal number as it is printed.
  scores = {
    name: round(float(value) / 100, 3) for name, value in zip(names, values, strict=True) if value != "-"
  }
  # Only means over nine scores give the averages printed in TACO's table 1; the other tables average eight.
  return Reference(model, source, scores, round(float(average) / 100, 3), source == "TACO table 1")
