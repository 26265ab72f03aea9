"""What a fine-tuned checkpoint says of its task, as settings beside exported weights, and back.

A checkpoint's `meta['task']` has 'labels' (names of the classes, or None), 'problem_type' and 'activation'
(of the classification head); the fields of config.json are those of transformers' PretrainedConfig.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from data.errors import DataError

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
# Of the classification head, where settings name none: fairseq's default, stock classes, the official port.
ACTIVATIONS = {"fairseq": "tanh", "own": "tanh", "mpnet": "tanh", "layoutlmv3": "tanh", "bert": "tanh"} | {
  "electra": "gelu",
  "official": "gelu",
}
# Beside a model of one's own task: texts, or pairs, that its export is checked with; they are not exported.
FIRST_ROWS = "first_rows.json"
CHECKED_ROWS = 8  # most of them
TASK = "task.json"  # what a model of one's own task answers and from what: goes out and comes in with it
POOLING = "classifier_pooling"  # in the config.json of `--to=torch`, where it is not 'cls'
_SETTINGS = {"fairseq": "pooler_activation_fn", "own": "classifier_activation"}


def activation(task: Mapping[str, Any]) -> str:
  """'tanh' or 'gelu', in the classification head: 'tanh' if the task names none, as in fairseq and BERT."""
  return task.get("activation", "tanh")


def pooling(task: Mapping[str, Any]) -> str:
  """Which vector of a text the classification head reads, of `ops.pooling`: 'cls' if the task names none."""
  return task.get("pooling", "cls")


def first_rows(directory: pathlib.Path) -> list[tuple[str, ...]]:
  """The texts in `FIRST_ROWS` of a model's directory; [] if there is none, or it is damaged."""
  try:
    found = json.loads((directory / FIRST_ROWS).read_text(encoding="utf-8"))
    return [tuple(map(str, texts)) for texts in found if 1 <= len(texts) <= 2]
  except (OSError, ValueError, TypeError):
    return []


def label_fields(params: dict, task: Mapping[str, Any]) -> dict[str, Any]:
  """'id2label', 'label2id' and, if the task says it, 'problem_type' for config.json; {} without a head.

  Classes that the task does not name are LABEL_0 and so on.
  """
  heads = params.get("heads", {})
  last = heads["classification"]["output"] if "classification" in heads else heads.get("tagging")
  if last is None:
    return {}
  count = last["bias"].shape[0]
  labels = task.get("labels") or [f"LABEL_{i}" for i in range(count)]
  fields = {
    "id2label": {str(number): label for number, label in enumerate(labels)},
    "label2id": {label: number for number, label in enumerate(labels)},
  }
  problem_type = task.get("problem_type")
  return fields | ({"problem_type": problem_type} if problem_type else {})


def own_fields(params: dict, task: Mapping[str, Any]) -> dict[str, Any]:
  """`label_fields` and the activation, for the config.json of `--to=torch`."""
  fields = label_fields(params, task)
  pooled = {} if pooling(task) == "cls" else {POOLING: pooling(task)}
  return fields | {_SETTINGS["own"]: activation(task), **pooled} if fields else {}


def read_task(settings: Mapping[str, Any], kind: str, *, num_outputs: int) -> dict[str, Any]:
  """'labels', 'problem_type' and 'activation' from the settings beside foreign weights with a classifier.

  `settings` is config.json or fairseq's args, `kind` is of `ACTIVATIONS`; 'own' may have 'pooling' besides.
  'labels' is None where there are no names but transformers' own LABEL_0. DataError: a field of another type,
  names that do not fit the head's outputs (one for a regression), an activation or pooling that ours has not.
  """
  from pretrain.ops.pooling import POOLINGS  # here: it imports JAX

  problem_type, activation = settings.get("problem_type"), settings.get(_SETTINGS.get(kind, ""))
  activation = activation or ACTIVATIONS[kind]
  for name, value, allowed in (
    ("problem_type", problem_type, (None, *PROBLEM_TYPES)),
    (_SETTINGS.get(kind, "activation"), activation, ("tanh", "gelu")),
    (POOLING, settings.get(POOLING) if kind == "own" else None, (None, *POOLINGS)),
  ):
    if value not in allowed:
      raise DataError(f"config of the checkpoint: {name} is {value!r}; expected one of {allowed}")
  pooled = {"pooling": settings[POOLING]} if kind == "own" and POOLING in settings else {}
  named = settings.get("id2label")
  plain = {str(i): f"LABEL_{i}" for i in range(num_outputs)}
  if named is None or named == plain:
    return {"labels": None, "problem_type": problem_type, "activation": activation, **pooled}
  ordered = {str(number): name for number, name in named.items()} if isinstance(named, Mapping) else {}
  if ordered.keys() != plain.keys() or not all(isinstance(name, str) for name in ordered.values()):
    raise DataError(
      f"config of the checkpoint: id2label is {str(named)[:80]}, expected names for 0 to {num_outputs - 1}, "
      "as its classification head has outputs; take both files from the same model"
    )
  labels = [ordered[str(i)] for i in range(num_outputs)]
  return {"labels": labels, "problem_type": problem_type, "activation": activation, **pooled}
