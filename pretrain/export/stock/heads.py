"""Puts heads and tables into the slots of stock classes, exactly, and reads them back.

Each form has its inverse, which returns None (or its argument) for tensors that do not have that form. All
arrays are float32 numpy.

ModernBERT's classes compute dense, activation and norm before their last linear layer. A linear head fits
too: without an activation, dense(h) = h * _SCALE / s and a norm with scale s give h again, because the hidden
state h is s times a vector of mean 0 and variance 1. s is the scale of the encoder's final norm.

Source: transformers 5.23, modeling_electra.py (ElectraDiscriminatorPredictions), modeling_layoutlmv3.py
(LayoutLMv3ClassificationHead, LayoutLMv3Encoder), and those of the pre-norm classes; the forms are ours.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data.errors import ConfigError
from pretrain.export.stock.classes import FINE_TUNED, refuse
from pretrain.export.stock.config import distance_bins, wrong
from pretrain.export.stock.names import pre_norm_heads
from pretrain.export.tensor_rows import Part
from pretrain.mesh import trees
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import official_buckets_of, t5_buckets_of

# Below this bound float32 tanh(y) equals y: the next term, y^3 / 3, is below half a unit in the last place.
TANH_IS_LINEAR_BELOW = 2.0**-13
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


def binary_head_as_dense(head: dict) -> dict:
  """Rewrites a one-layer RTD head with a dense layer: gelu(x) - gelu(-x) = x, by two opposite rows.

  {'kernel' [D, 1], 'bias' [1]}, D at least 2, becomes {'dense': {'kernel' [D, D], 'bias' [D]}, 'kernel'
  [D, 1], 'bias' [1]} with the same logits; a head with 'dense' is returned unchanged.
  """
  if "dense" in head:
    return head
  kernel = np.asarray(head["kernel"], np.float32)
  dense, output = np.zeros((len(kernel), len(kernel)), np.float32), np.zeros_like(kernel)
  dense[:, 0], dense[:, 1] = kernel[:, 0], -kernel[:, 0]
  output[0], output[1] = 1, -1
  return {
    "dense": {"kernel": dense, "bias": np.zeros(len(kernel), np.float32)},
    "kernel": output,
    "bias": head["bias"],
  }


def binary_head_from_dense(head: dict) -> dict:
  """Inverts `binary_head_as_dense`; a head with a real dense layer is returned unchanged."""
  linear = {"kernel": head["dense"]["kernel"][:, :1], "bias": head["bias"]}
  return linear if same(binary_head_as_dense(linear), head) else head


def linear_head_as_tanh(head: dict, norm: dict) -> dict:
  """Rewrites a linear head on tokens as dense, tanh, dense, scaled into the range where tanh(y) = y.

  The scale is a power of two, so that only exponents change: logits are equal in float32 and bfloat16.
  float16 has too few exponents.

  Args:
    head: {'kernel' [D, n], 'bias' [n]}: start and end of an answer, or the labels of a token, n <= D.
    norm: {'scale' [D], 'bias' [D]} of the last LayerNorm, which bounds the head's input.

  Returns:
    {'dense': {'kernel' [D, D], 'bias' [D]}, 'output': {'kernel' [D, n], 'bias' [n]}}.

  Raises:
    ConfigError: more labels than D.
  """
  kernel, bias = (np.asarray(head[name], np.float32) for name in ("kernel", "bias"))
  if kernel.shape[1] > len(kernel):
    raise ConfigError(
      f"export: {kernel.shape[1]} labels for a token, but LayoutLMv3's class has room for {len(kernel)}; "
      "use\n  --to=torch"
    )
  # A normalised vector has length sqrt(D) at most. float64, because float32 values may overflow here.
  scale, shift, wide = (np.asarray(a, np.float64) for a in (norm["scale"], norm["bias"], kernel))
  longest = np.sqrt(len(kernel)) * np.abs(scale).max() + np.linalg.norm(shift)
  bound = float((np.linalg.norm(wide, axis=0) * longest + np.abs(bias)).max())
  halvings = max(0, int(np.ceil(np.log2(max(bound, 1e-30) / TANH_IS_LINEAR_BELOW))))
  return _scaled_linear_head(kernel, bias, 2.0**-halvings)


def _scaled_linear_head(kernel: np.ndarray, bias: np.ndarray, scale: float) -> dict:
  size, count = kernel.shape
  dense = {"kernel": np.zeros((size, size), np.float32), "bias": np.zeros(size, np.float32)}
  dense["kernel"][:, :count], dense["bias"][:count] = kernel * np.float32(scale), bias * np.float32(scale)
  output = np.eye(size, count, dtype=np.float32) / np.float32(scale)
  return {"dense": dense, "output": {"kernel": output, "bias": np.zeros(count, np.float32)}}


def linear_head_from_tanh(head: dict) -> dict | None:
  """Inverts `linear_head_as_tanh`; None for any other head of that shape."""
  factor = float(head["output"]["kernel"][0, 0])
  if not 1 <= factor < np.inf:  # also false for NaN
    return None
  count = head["output"]["bias"].shape[0]
  linear = {name: head["dense"][name][..., :count] * np.float32(factor) for name in ("kernel", "bias")}
  return linear if same(_scaled_linear_head(linear["kernel"], linear["bias"], 1 / factor), head) else None


def distance_rows(table: np.ndarray, config: EncoderConfig) -> np.ndarray:
  """Expands our bucketed table to LayoutLMv3's weight of relative positions, a row for each distance.

  Args:
    table: [buckets, heads] float32.
    config: of the encoder; relative_position 't5' or 'official'.

  Returns:
    [heads, distance_bins(max_length)] float32, multiplied by sqrt(head_dim), because the class divides by it.
    Unused columns are 0.
  """
  delta = np.arange(-(config.max_length - 1), config.max_length)
  sizes = {"num_buckets": config.relative_buckets, "max_distance": config.relative_max_distance}
  if config.relative_position == "t5":
    buckets = t5_buckets_of(delta, **sizes)
  else:
    buckets = official_buckets_of(delta, max_length=config.max_length, **sizes)
  bins = distance_bins(config.max_length)
  rows = np.zeros((bins, table.shape[1]), np.float32)
  rows[np.where(delta > 0, bins // 2, 0) + np.abs(delta)] = table[buckets] * np.sqrt(config.head_dim)
  return np.ascontiguousarray(rows.T)


def blank_pooler(hidden_size: int) -> dict[str, np.ndarray]:
  """Returns an identity pooler for BertModel and MPNetModel, which have one that is not trained here.

  Zeros would make its output constant, and random numbers would differ between exports.
  """
  return {
    "pooler.dense.weight": np.eye(hidden_size, dtype=np.float32),
    "pooler.dense.bias": np.zeros(hidden_size, np.float32),
  }


def same(first: dict, second: dict) -> bool:
  """Whether two trees have the same names and bits."""
  if first.keys() != second.keys():
    return False
  return all(
    same(first[name], second[name])
    if isinstance(first[name], dict)
    else np.array_equal(first[name], second[name])
    for name in first
  )


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
  heads, parts = params.get("heads", {}), pre_norm_heads(layout, config)
  for head in (name for name in _CLASSES if name in heads):
    (ending, name), tree, fields = _CLASSES[head], heads[head], {}
    if head == "rtd":
      numbered = dict(enumerate(RTD_LABELS))
      fields["id2label"] = {str(number): label for number, label in numbered.items()}
      fields["label2id"] = {label: number for number, label in numbered.items()}
      tree = tree | {each: np.insert(tree[each], 0, 0, axis=-1) for each in ("kernel", "bias")}
    if layout == "modernbert" and not {"dense", "output"} & {*tree}:
      tree, fields = tree | _identity(params, config), fields | {"classifier_activation": "linear"}
    if layout == "eurobert":
      fields["tie_word_embeddings"] = name != "mlm"
    part = parts.get(ending)
    if part is not None and {f"heads/{name}/{path}" for path in trees.by_path(tree)} == part.held:
      others = {other: own for other, own in heads.items() if other != head}
      return Slot(ending, head, others | {name: tree}, part, fields)
    if head in FINE_TUNED:
      refuse(layout, f"its classes have no slot for a {head} head of {', '.join(sorted(tree))}")
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
