"""Tables of stock classes with pre-norm layers, RoPE and gated MLPs: ModernBERT, UltraBERT, EuroBERT.

A class keeps the norm that a branch reads beside that branch. Ours keeps it with the layer before
(`pretrain.models.layers.Layer`), so that all layers have the same parameters: `shifted` renames the norms
between the two, and the tables below are of the renamed tensors.

Source of the names: transformers 5.23, modeling_{modernbert,ultrabert,eurobert}.py.
"""

from typing import NamedTuple

import numpy as np

from data.errors import DataError
from pretrain.export.stock.tables import HEADS_BIAS, HEADS_KERNEL
from pretrain.export.tensor_rows import (
  LINEAR,
  OUTPUT_KERNEL,
  QKV_BIAS,
  QKV_KERNEL,
  SAME,
  Layout,
  Part,
  Row,
  State,
)
from pretrain.models.layers import EncoderConfig

# The upper half of Wi goes through the activation, the lower half is multiplied with it.
GATED_KERNEL = Layout(
  lambda a, heads: [half.T for half in np.split(a, 2)],
  lambda parts: np.concatenate([kernel.T for kernel in parts]),
)
GATED_BIAS = Layout(lambda a, heads: np.split(a, 2), np.concatenate)
_FOLLOWING = "layers.{}.following_norm"  # the norm of the next layer's attention, or the final norm


class Names(NamedTuple):
  """The names of a class for what all three have."""

  tokens: str
  embedding_norm: str  # '': there is none
  first_norm: str  # of layer 0, where the embeddings have none
  attention_norm: str  # of a layer; `{}` is its number
  mlp_norm: str
  final_norm: str


NAMES = {
  "modernbert": Names(
    "embeddings.tok_embeddings",
    "embeddings.norm",
    "",
    "layers.{}.attn_norm",
    "layers.{}.mlp_norm",
    "final_norm",
  )
} | dict.fromkeys(
  ("ultrabert", "eurobert"),
  Names(
    "embed_tokens",
    "",
    "layers.0.input_layernorm",
    "layers.{}.input_layernorm",
    "layers.{}.post_attention_layernorm",
    "norm",
  ),
)


def shifted(state: State, layout: str, num_layers: int, *, to_ours: bool) -> State:
  """Returns tensors with the norms before attention named after the layer that computes them here, or back.

  Raises:
    DataError: the tensors have a norm in ModernBERT's first layer, which the class never has.
  """
  names, leaves = NAMES[layout], ("weight", "bias")
  renames = {}
  for leaf in leaves:
    for layer in range(1, num_layers):
      renames[f"{names.attention_norm.format(layer)}.{leaf}"] = f"{_FOLLOWING.format(layer - 1)}.{leaf}"
    renames[f"{names.final_norm}.{leaf}"] = f"{_FOLLOWING.format(num_layers - 1)}.{leaf}"
  first = f"{names.attention_norm.format(0)}.weight"
  if to_ours and not names.first_norm and first in state:
    raise DataError(
      f"checkpoint: tensor {first} is there, but the class has no such norm; check the checkpoint"
    )
  if not to_ours:
    renames = {ours: theirs for theirs, ours in renames.items()}
  return {renames.get(name, name): array for name, array in state.items()}


def _rows(
  name: str, path: str, shape: tuple[str, str], layouts: tuple[Layout, Layout], *, has_bias: bool
) -> list[Row]:
  """Rows of a linear layer; of a `path` 'a/b|c' one tensor holds the kernels 'a/b' and 'a/c'."""
  prefix, _, last = path.rpartition("/")
  paths = [f"{prefix}/{each}/".lstrip("/") for each in last.split("|")]
  rows = [Row(f"{name}.weight", tuple(f"{each}kernel" for each in paths), shape, layouts[0])]
  if has_bias:
    rows.append(Row(f"{name}.bias", tuple(f"{each}bias" for each in paths), shape[:1], layouts[1]))
  return rows


def _norm_rows(name: str, path: str, *, has_bias: bool) -> list[Row]:
  pairs = (("weight", "scale"), ("bias", "bias"))[: 1 + has_bias]
  return [Row(f"{name}.{theirs}", (f"{path}/{ours}",), ("D",), SAME) for theirs, ours in pairs]


def encoder_parts(layout: str, config: EncoderConfig) -> tuple[Part, ...]:
  """Returns the parts of an encoder in a class, of tensors that `shifted` renamed."""
  names, ours, layer = NAMES[layout], "trunk/layers", "layers.{}"
  has_bias, mlp_bias, norm_bias = config.attention_bias, config.mlp_bias, config.norm_bias
  embeddings = [Row(f"{names.tokens}.weight", ("embeddings/token/embedding",), ("V", "D"), SAME)]
  if names.embedding_norm:
    embeddings += _norm_rows(names.embedding_norm, "embeddings/norm", has_bias=norm_bias)
  else:
    embeddings += _norm_rows(names.first_norm, "trunk/first_norm", has_bias=norm_bias)
  output = (OUTPUT_KERNEL, SAME)
  if layout == "modernbert":
    rows = [
      *_rows(
        f"{layer}.attn.Wqkv",
        f"{ours}/attention/query|key|value",
        ("3D", "D"),
        (QKV_KERNEL, QKV_BIAS),
        has_bias=has_bias,
      ),
      *_rows(f"{layer}.attn.Wo", f"{ours}/attention/output", ("D", "D"), output, has_bias=has_bias),
      *_rows(
        f"{layer}.mlp.Wi", f"{ours}/gate|up", ("2F", "D"), (GATED_KERNEL, GATED_BIAS), has_bias=mlp_bias
      ),
      *_rows(f"{layer}.mlp.Wo", f"{ours}/down", ("D", "F"), (LINEAR, SAME), has_bias=mlp_bias),
    ]
  else:
    heads, linear = (HEADS_KERNEL, HEADS_BIAS), (LINEAR, SAME)
    rows = [
      *_rows(f"{layer}.self_attn.q_proj", f"{ours}/attention/query", ("D", "D"), heads, has_bias=has_bias),
      *_rows(f"{layer}.self_attn.k_proj", f"{ours}/attention/key", ("D", "D"), heads, has_bias=has_bias),
      *_rows(f"{layer}.self_attn.v_proj", f"{ours}/attention/value", ("D", "D"), heads, has_bias=has_bias),
      *_rows(f"{layer}.self_attn.o_proj", f"{ours}/attention/output", ("D", "D"), output, has_bias=has_bias),
      *_rows(f"{layer}.mlp.gate_proj", f"{ours}/gate", ("F", "D"), linear, has_bias=mlp_bias),
      *_rows(f"{layer}.mlp.up_proj", f"{ours}/up", ("F", "D"), linear, has_bias=mlp_bias),
      *_rows(f"{layer}.mlp.down_proj", f"{ours}/down", ("D", "F"), linear, has_bias=mlp_bias),
    ]
  rows += _norm_rows(names.mlp_norm, f"{ours}/attention_norm", has_bias=norm_bias)
  rows += _norm_rows(_FOLLOWING, f"{ours}/mlp_norm", has_bias=norm_bias)
  return (
    Part(tuple(embeddings), "encoder/", is_required=True),
    Part(tuple(rows), "encoder/", is_required=True),
  )


def head_parts(layout: str, config: EncoderConfig) -> dict[str, Part]:
  """Returns {end of the class's name: its head} of a layout, in the order in which they are written."""
  has_bias = config.norm_bias
  transform = [
    *_rows("head.dense", "dense", ("D", "D"), (LINEAR, SAME), has_bias=has_bias),
    *_norm_rows("head.norm", "norm", has_bias=has_bias),
  ]
  linear = _rows("classifier", "", ("C", "D"), (LINEAR, SAME), has_bias=True)
  output = _rows("classifier", "output", ("C", "D"), (LINEAR, SAME), has_bias=True)
  if layout != "modernbert":
    tagging = {"ForTokenClassification": Part(tuple(linear), "heads/tagging/")}
    if layout == "eurobert":  # its other heads have no counterpart here
      return tagging
    span = _rows("qa_outputs", "", ("2", "D"), (LINEAR, SAME), has_bias=True)
    return tagging | {
      "ForSequenceClassification": Part(tuple(output), "heads/classification/"),
      "ForQuestionAnswering": Part(tuple(span), "heads/question_answering/"),
    }
  bias = Row("decoder.bias", ("bias",), ("V",), SAME)
  return {
    "ForSequenceClassification": Part((*transform, *output), "heads/classification/"),
    "ForTokenClassification": Part((*transform, *linear), "heads/tagging/"),
    "ForQuestionAnswering": Part((*transform, *linear), "heads/question_answering/"),
    "ForMaskedLM": Part((bias, *transform), "heads/mlm/"),
  }
