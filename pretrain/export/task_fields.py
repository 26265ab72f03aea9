"""Converts the task of a fine-tuned checkpoint to fields of config.json, and back.

A checkpoint's `meta['task']` has 'labels' (names of the classes, or None), 'problem_type' and 'activation'
(of the classification head); the fields of config.json are those of transformers' PretrainedConfig.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from data.errors import DataError

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
# File beside a model of the user's own task: texts or pairs for the self-check; it is not exported.
FIRST_ROWS = "first_rows.json"
CHECKED_ROWS = 8  # at most so many rows are stored
TASK = "task.json"  # describes the user's own task; exported and imported with the model
POOLING = "classifier_pooling"  # field of `_POOLED` in config.json
_POOLED = ("own", "modernbert", "ultrabert")  # `--to=torch` (if it is not 'cls') and classes
_SETTINGS = {"fairseq": "pooler_activation_fn", "own": "classifier_activation"}
# Parts of `meta['task']` that only this program reads, and the field of config.json that keeps them: which
# columns and how many tokens a model reads, and how it reads a question and its text.
_OURS = ("name", "metric", "windows", "mask_query")
_FIELD = "text_encoder_task"


def class_activation(kind: str) -> str:
  """Returns the activation of the classification head in a stock class or another library's code.

  In classes with pre-norm layers the head has the encoder's activation; there this value is not read.
  """
  return {"electra": "gelu", "official": "gelu", "deberta-v2": "gelu", "distilbert": "relu"}.get(kind, "tanh")


def activation(task: Mapping[str, Any]) -> str:
  """Returns the activation of the classification head; 'tanh' if the task has none."""
  return task.get("activation", "tanh")


def pooling(task: Mapping[str, Any]) -> str:
  """Returns how a classification head pools vectors (see `ops.positions.pool`); 'cls' by default."""
  return task.get("pooling", "cls")


def first_rows(directory: pathlib.Path) -> list[tuple[str, ...]]:
  """Reads the texts in `FIRST_ROWS` of a model's directory; [] if the file is missing or damaged."""
  try:
    found = json.loads((directory / FIRST_ROWS).read_text(encoding="utf-8"))
    return [tuple(map(str, texts)) for texts in found if 1 <= len(texts) <= 2]
  except (OSError, ValueError, TypeError):
    return []


def last_layer(heads: Mapping[str, Any]) -> Mapping[str, Any] | None:
  """Returns the layer whose outputs are the labels of texts or words; None without such a head."""
  return heads["classification"]["output"] if "classification" in heads else heads.get("tagging")


def label_fields(params: dict, task: Mapping[str, Any]) -> dict[str, Any]:
  """Returns 'id2label', 'label2id' and 'problem_type' for config.json; {} without a classifier.

  Classes without names become LABEL_0, LABEL_1, ...; an unknown problem type is left out. A fine-tuned model
  also has the field that `stored_task` reads.
  """
  heads = params.get("heads", {})
  kept = {name: task[name] for name in _OURS if name in task}
  longest = task.get("fingerprint", {}).get("max_length")
  kept |= {"fingerprint": {"max_length": longest}} if longest else {}
  ours = {_FIELD: kept} if kept else {}
  last = last_layer(heads)
  if last is None:
    return ours if "question_answering" in heads else {}
  count = last["bias"].shape[0]
  labels = task.get("labels") or [f"LABEL_{i}" for i in range(count)]
  fields = {
    "id2label": {str(number): label for number, label in enumerate(labels)},
    "label2id": {label: number for number, label in enumerate(labels)},
  }
  problem_type = task.get("problem_type")
  return fields | ours | ({"problem_type": problem_type} if problem_type else {})


def stored_task(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the parts of `meta['task']` that an export of ours keeps in config.json; {} in other files.

  DataError: the field is damaged.
  """
  kept = settings.get(_FIELD, {})
  sizes = [kept.get(name, {}) for name in ("windows", "fingerprint")] if isinstance(kept, dict) else [kept]
  if not all(isinstance(each, dict) and all(type(n) is int for n in each.values()) for each in sizes):
    raise DataError(f"the checkpoint's config: {_FIELD} is {str(kept)[:80]}; export the model again")
  return {name: kept[name] for name in (*_OURS, "fingerprint") if name in kept}


def own_fields(params: dict, task: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `label_fields` with activation and pooling, for the config.json of `--to=torch`."""
  fields = label_fields(params, task)
  pooled = {} if pooling(task) == "cls" else {POOLING: pooling(task)}
  return fields | {_SETTINGS["own"]: activation(task), **pooled} if fields else {}


def read_task(settings: Mapping[str, Any], kind: str, *, num_outputs: int) -> dict[str, Any]:
  """Reads 'labels', 'problem_type' and 'activation' from the settings of another library's classifier.

  `settings` is config.json or fairseq's args, `kind` a stock class,
  'own', 'fairseq' or 'official' (the Hugging Face port). 'pooling' is there if it is
  another than 'cls'. 'labels' is None if the names are transformers' default (LABEL_0, ...). DataError: a
  field has an unsupported value, or the names do not match the head's outputs (one for a regression).
  """
  from pretrain.ops.positions import POOLINGS  # not at the top, because it imports JAX

  problem_type, activation = settings.get("problem_type"), settings.get(_SETTINGS.get(kind, ""))
  activation = activation or class_activation(kind)
  for name, value, allowed in (
    ("problem_type", problem_type, (None, *PROBLEM_TYPES)),
    (_SETTINGS.get(kind, "activation"), activation, ("tanh", "gelu", "relu")),
    (POOLING, settings.get(POOLING) if kind in _POOLED else None, (None, *POOLINGS)),
  ):
    if value not in allowed:
      raise DataError(f"the checkpoint's config: {name} is {value!r}; expected one of {allowed}")
  pooled = {"pooling": settings.get(POOLING)} if kind in _POOLED else {}
  pooled = {} if pooled.get("pooling") in (None, "cls") else pooled
  named = settings.get("id2label")
  plain = {str(i): f"LABEL_{i}" for i in range(num_outputs)}
  if named is None or named == plain:
    return {"labels": None, "problem_type": problem_type, "activation": activation, **pooled}
  ordered = {str(number): name for number, name in named.items()} if isinstance(named, Mapping) else {}
  if ordered.keys() != plain.keys() or not all(isinstance(name, str) for name in ordered.values()):
    raise DataError(
      f"the checkpoint's config: id2label is {str(named)[:80]}; expected names for the {num_outputs} "
      f"outputs of the classification head, 0 to {num_outputs - 1}; use config and weights of the same model"
    )
  labels = [ordered[str(i)] for i in range(num_outputs)]
  return {"labels": labels, "problem_type": problem_type, "activation": activation, **pooled}
