"""What a fine-tuned checkpoint says of its task, as settings beside exported weights, and back.

A checkpoint's `meta['task']` has 'labels' (names of the classes, or None), 'problem_type' and 'activation'
(of the classification head); the fields of config.json are those of transformers' PretrainedConfig.
"""

from collections.abc import Mapping
from typing import Any

from data.errors import ConfigError, DataError

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
# Of the classification head, where settings name none: fairseq's default, stock classes, the official port.
ACTIVATIONS = {"fairseq": "tanh", "own": "tanh", "mpnet": "tanh", "layoutlmv3": "tanh", "bert": "tanh"} | {
  "electra": "gelu",
  "official": "gelu",
}
_SETTINGS = {"fairseq": "pooler_activation_fn", "own": "classifier_activation"}


def arguments(task: Mapping[str, Any]) -> dict[str, Any]:
  """Arguments `id2label` and `problem_type` of `label_fields` from a checkpoint's task."""
  labels = task.get("labels")
  return {"id2label": dict(enumerate(labels)) if labels else None, "problem_type": task.get("problem_type")}


def label_fields(
  head: Mapping[str, Any], *, id2label: Mapping[int, str] | None, problem_type: str | None
) -> dict[str, Any]:
  """Fields of `config.json` about the classes.

  Args:
    head: of `init_classification_head`.
    id2label: names of the classes by number from 0; None: LABEL_0 and so on.
    problem_type: of `PROBLEM_TYPES`; None: left out.

  Returns:
    'id2label', 'label2id' and, if given, 'problem_type'.

  Raises:
    ConfigError: names that do not fit the head, or another problem type.
  """
  count = head["output"]["bias"].shape[0]
  labels = {i: f"LABEL_{i}" for i in range(count)} if id2label is None else dict(id2label)
  if sorted(labels) != list(range(count)) or len(set(labels.values())) != count:
    raise ConfigError(
      f"export: id2label has {labels}, expected {count} different names for 0 to {count - 1} as in the head"
    )
  if problem_type not in (None, *PROBLEM_TYPES):
    raise ConfigError(f"export: problem_type is {problem_type!r}, expected one of {', '.join(PROBLEM_TYPES)}")
  fields: dict[str, Any] = {
    "id2label": {str(i): labels[i] for i in range(count)},
    "label2id": {labels[i]: i for i in range(count)},
  }
  return fields | ({} if problem_type is None else {"problem_type": problem_type})


def own_fields(head: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
  """`label_fields` and the activation, for the config.json of `--to=torch`; raises as `label_fields`."""
  return label_fields(head, **arguments(task)) | {_SETTINGS["own"]: task.get("activation", "tanh")}


def read_task(settings: Mapping[str, Any], kind: str, *, num_outputs: int) -> dict[str, Any]:
  """A checkpoint's task from the settings beside foreign weights with a classification head.

  Args:
    settings: config.json, or fairseq's args.
    kind: of `ACTIVATIONS`: 'fairseq', 'official', 'own' or a stock model_type.
    num_outputs: of the head.

  Returns:
    'labels' (None where there are no names but transformers' own LABEL_0), 'problem_type', 'activation'.

  Raises:
    DataError: a field of another type, names that do not fit the head, or an activation that ours has not.
  """
  problem_type, activation = settings.get("problem_type"), settings.get(_SETTINGS.get(kind, ""))
  activation = activation or ACTIVATIONS[kind]
  for name, value, allowed in (
    ("problem_type", problem_type, (None, *PROBLEM_TYPES)),
    (_SETTINGS.get(kind, "activation"), activation, ("tanh", "gelu")),
  ):
    if value not in allowed:
      raise DataError(f"config of the checkpoint: {name} is {value!r}; expected one of {allowed}")
  named = settings.get("id2label")
  plain = {str(i): f"LABEL_{i}" for i in range(num_outputs)}
  if named is None or named == plain:
    return {"labels": None, "problem_type": problem_type, "activation": activation}
  ordered = {str(number): name for number, name in named.items()} if isinstance(named, Mapping) else {}
  if ordered.keys() != plain.keys() or not all(isinstance(name, str) for name in ordered.values()):
    raise DataError(
      f"config of the checkpoint: id2label is {str(named)[:80]}, expected names for 0 to {num_outputs - 1}, "
      "as its classification head has outputs; take both files from the same model"
    )
  labels = [ordered[str(i)] for i in range(num_outputs)]
  return {"labels": labels, "problem_type": problem_type, "activation": activation}
