"""Puts heads into the slots of stock classes with pre-norm layers, and reads them back.

ModernBERT's classes compute dense, activation and norm before their last linear layer. A linear head fits
too: without an activation, dense(h) = h * _SCALE / s and a norm with scale s give h again, because the hidden
state h is s times a vector of mean 0 and variance 1. s is the scale of the encoder's final norm.

Source: transformers 5.23, modeling_{modernbert,ultrabert,eurobert}.py; the form is ours.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pretrain.export import folders
from pretrain.export.stock.forms import same
from pretrain.export.stock.json_values import wrong
from pretrain.export.stock.pre_norm import head_parts
from pretrain.export.tensor_rows import Part
from pretrain.mesh import trees
from pretrain.models.layers import EncoderConfig

RTD_LABELS = ("REPLACED", "ORIGINAL")
_SCALE = np.float32(8)  # the variance is 64: the norm's epsilon, 1e-5, is nothing beside it
# {our head: end of the class name, the head's name in the class's table}; the first that fits is written.
_CLASSES = {
  "classification": ("ForSequenceClassification", "classification"),
  "tagging": ("ForTokenClassification", "tagging"),
  "question_answering": ("ForQuestionAnswering", "question_answering"),
  "mlm": ("ForMaskedLM", "mlm"),
  "clm": ("ForMaskedLM", "mlm"),
  "rtd": ("ForTokenClassification", "tagging"),
}
_FINE_TUNED = ("classification", "tagging", "question_answering")


class Slot(NamedTuple):
  """The head that a class computes."""

  ending: str  # of the class name, e.g. 'ForMaskedLM'
  head: str  # name of our head; '': none
  heads: dict  # all heads, with this one in the form and under the name of the class's table
  part: Part | None  # its table
  fields: dict[str, Any]  # of config.json


def slot(params: dict, config: EncoderConfig, *, layout: str) -> Slot:
  """Returns the first head that the class of a layout computes exactly; the others have no slot in it.

  The logits of an RTD head become those of two labels, 0 and the head's, so that a softmax gives the head's
  probability. ConfigError: the class has no slot for a fine-tuned head.
  """
  heads, parts = params.get("heads", {}), head_parts(layout, config)
  for head in (name for name in _CLASSES if name in heads):
    (ending, name), tree, fields = _CLASSES[head], heads[head], {}
    if head == "rtd":
      numbered = dict(enumerate(RTD_LABELS))
      fields["id2label"] = {str(number): label for number, label in numbered.items()}
      fields["label2id"] = {label: number for number, label in numbered.items()}
      tree = tree | {each: np.insert(tree[each], 0, 0, axis=-1) for each in ("kernel", "bias")}
    if layout == "modernbert" and not {"dense", "output"} & {*tree}:
      tree, fields = tree | _identity(params, config), fields | {"classifier_activation": "linear"}
    part = parts.get(ending)
    if part is not None and {f"heads/{name}/{path}" for path in trees.by_path(tree)} == part.held:
      others = {other: own for other, own in heads.items() if other != head}
      return Slot(ending, head, others | {name: tree}, part, fields)
    if head in _FINE_TUNED:
      folders.refuse(layout, f"its classes have no slot for a {head} head of {', '.join(sorted(tree))}")
  return Slot("Model", "", heads, None, {})


def _identity(params: dict, config: EncoderConfig) -> dict:
  """Returns dense and norm that give the hidden state again; {} if the final norm does not allow it."""
  scale = np.asarray(params["encoder"]["trunk"]["layers"]["mlp_norm"]["scale"][-1], np.float32)
  if config.norm_bias or not scale.all():
    return {}
  return {"dense": {"kernel": np.diag(_SCALE / scale)}, "norm": {"scale": scale}}


def own_heads(params: dict, config: EncoderConfig, config_json: Mapping[str, Any]) -> dict:
  """Returns the heads in our form, from `params` with heads as the class of a `config.json` has them.

  DataError: a head has another activation than the encoder, whose heads here have its own.
  """
  own = {}
  for name, tree in params.get("heads", {}).items():
    if "norm" in tree:
      activation, identity = config_json.get("classifier_activation", "gelu"), _identity(params, config)
      if activation == "linear" and identity and same(tree | identity, tree):
        tree = {each: tree[each] for each in tree if each not in ("dense", "norm")}
        name = "clm" if name == "mlm" else name
      elif activation != config.activation:
        expected = f"{config.activation!r}, the encoder's hidden_activation"
        raise wrong("classifier_activation", activation, expected, "such a head is not supported")
    labels = config_json.get("id2label")
    is_rtd = isinstance(labels, Mapping) and tuple(labels.values()) == RTD_LABELS and "norm" not in tree
    if name == "tagging" and is_rtd and not tree["kernel"][:, 0].any() and not tree["bias"][0]:
      name, tree = "rtd", {each: array[..., 1:] for each, array in tree.items()}
    own[name] = tree
  return own
