"""Maps tensor names of stock transformers classes to our paths: tables of rows, for reading and writing.

Names here lack the base model's prefix (`bert.` and so on), which is optional in checkpoints.

A class with pre-norm layers keeps the norm that a branch reads beside that branch. Ours keeps it with the
layer before (`pretrain.models.layers.Layer`), so that all layers have the same parameters: `shifted` renames
the norms between the two, and the tables of these classes are of the renamed tensors.

Source of the names: transformers 5.23, modeling_*.py of the classes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from data.errors import DataError
from pretrain.export.stock.classes import CLASSES
from pretrain.export.tensor_rows import (
  HEADS_BIAS,
  HEADS_KERNEL,
  OUTPUT_KERNEL,
  QKV_BIAS,
  QKV_KERNEL,
  SAME,
  Layout,
  Part,
  Row,
  State,
  Tie,
  linear,
  norm,
)
from pretrain.models.layers import EncoderConfig

# A positive logit means "replaced" in ELECTRA and DeBERTa, but "original" here.
NEGATED = Layout(lambda a, heads: [-a], lambda parts: -parts[0])
NEGATED_LINEAR = Layout(lambda a, heads: [-a.T], lambda parts: -parts[0].T)


def _layers(prefix: str, names: str) -> tuple[Row, ...]:
  """Returns the rows of a layer from its eight names: query, key, value, output, norm, up, down, norm."""
  ours, square = "trunk/layers", ("D", "D")
  query, key, value, output, attention_norm, up, down, mlp_norm = (
    f"{prefix}.{{}}.{each}" for each in names.split()
  )
  return (
    *linear(query, f"{ours}/attention/query", square, HEADS_KERNEL, HEADS_BIAS),
    *linear(key, f"{ours}/attention/key", square, HEADS_KERNEL, HEADS_BIAS),
    *linear(value, f"{ours}/attention/value", square, HEADS_KERNEL, HEADS_BIAS),
    *linear(output, f"{ours}/attention/output", square, OUTPUT_KERNEL),
    *norm(attention_norm, f"{ours}/attention_norm"),
    *linear(up, f"{ours}/up", ("F", "D")),
    *linear(down, f"{ours}/down", ("D", "F")),
    *norm(mlp_norm, f"{ours}/mlp_norm"),
  )


def _gated_layers(prefix: str, names: str) -> tuple[Row, ...]:
  """Returns the rows of a gated layer without biases, from seven names: `qkv` is query, key and value."""
  ours = "trunk/layers"
  theirs = (f"{prefix}.{{}}.{each}" for each in names.split())
  qkv, output, attention_norm, gate, up, down, mlp_norm = theirs
  return (
    *linear(qkv, f"{ours}/attention/query|key|value", ("3D", "D"), QKV_KERNEL, has_bias=False),
    *linear(output, f"{ours}/attention/output", ("D", "D"), OUTPUT_KERNEL, has_bias=False),
    *norm(attention_norm, f"{ours}/attention_norm"),
    *linear(gate, f"{ours}/gate", ("F", "D"), has_bias=False),
    *linear(up, f"{ours}/up", ("F", "D"), has_bias=False),
    *linear(down, f"{ours}/down", ("D", "F"), has_bias=False),
    *norm(mlp_norm, f"{ours}/mlp_norm"),
  )


def _mlm(bias: str, dense: str, layer_norm: str) -> Part:
  rows = (Row(bias, ("bias",), ("V",), SAME), *linear(dense, "dense", ("E", "D")))
  return Part((*rows, *norm(layer_norm, "norm", "E")), "heads/mlm/")


def _binary(dense: str, output: str) -> tuple[Row, ...]:
  return (
    *linear(dense, "dense", ("D", "D")),
    Row(f"{output}.weight", ("kernel",), ("1", "D"), NEGATED_LINEAR),
    Row(f"{output}.bias", ("bias",), ("1",), NEGATED),
  )


def _classification(dense: str, output: str) -> Part:
  rows = (*linear(dense, "dense", ("D", "D")), *linear(output, "output", ("C", "D")))
  return Part(rows, "heads/classification/")


# From this number of labels on, LayoutLMv3's token head has the shape of a text classifier.
MANY_LABELS = 10
WIDE_TAGGING = _classification("classifier.dense", "classifier.out_proj")._replace(path="heads/tagging/")
_WORDS = "embeddings.word_embeddings.weight"
_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
DISTANCES = "encoder.rel_pos_bias.weight"
SPATIAL = tuple(f"embeddings.{axis}_position_embeddings.weight" for axis in "xyhw")
RELATIVE_PATH = "encoder/trunk/relative_position/embedding"
_BERT_LAYERS = _layers(
  "encoder.layer",
  "attention.self.query attention.self.key attention.self.value attention.output.dense "
  "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
)
_HEADS = {
  "ForSequenceClassification": _classification("classifier.dense", "classifier.out_proj"),
  "ForTokenClassification": Part(linear("classifier", "tagging", ("C", "D")), "heads/"),
  "ForQuestionAnswering": Part(linear("qa_outputs", "question_answering", ("2", "D")), "heads/"),
}


class Tensors(NamedTuple):
  """The tensors of a class with post-norm layers, beside the embeddings, which are the same in all."""

  layers: tuple[Row, ...]
  heads: Mapping[str, Part]  # by the ending of the class's name; the first whose parameters exist is written
  relative: tuple[Row, ...] = ()  # its table of relative positions
  beside: Part | None = None  # a head that its files have beside that of a class, which does not read it
  embedding_norm: str = "embeddings.LayerNorm"
  tied: Mapping[
    str, str
  ] = {}  # tensors that a checkpoint may store twice; the class ties them: never written


_ROBERTA = Tensors(
  _BERT_LAYERS,
  _HEADS | {"ForMaskedLM": _mlm("lm_head.bias", "lm_head.dense", "lm_head.layer_norm")},
  tied={"lm_head.decoder.weight": _WORDS, "lm_head.decoder.bias": "lm_head.bias"},
)
_POOLED = {"ForSequenceClassification": _classification("pooler.dense", "classifier")}
_MLM_OF_BERT = _mlm(
  "cls.predictions.bias", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
)
_OF_BERT = {
  "cls.predictions.decoder.weight": _WORDS,
  "cls.predictions.decoder.bias": "cls.predictions.bias",
}
TENSORS = {
  "bert": Tensors(
    _BERT_LAYERS,
    _HEADS
    | _POOLED
    | {
      "ForMaskedLM": _MLM_OF_BERT,
    },
    tied=_OF_BERT,
  ),
  "electra": Tensors(
    _BERT_LAYERS,
    _HEADS
    | {
      "ForPreTraining": Part(
        _binary("dense", "dense_prediction"), "heads/rtd/", "discriminator_predictions."
      ),
      "ForMaskedLM": _mlm(
        "generator_lm_head.bias", "generator_predictions.dense", "generator_predictions.LayerNorm"
      ),
    },
    tied={"generator_lm_head.weight": _WORDS},
  ),
  "mpnet": _ROBERTA._replace(
    layers=_layers(
      "encoder.layer",
      "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm "
      "intermediate.dense output.dense output.LayerNorm",
    ),
    relative=(Row("encoder.relative_attention_bias.weight", (RELATIVE_PATH,), ("R", "A"), SAME),),
  ),
  "roberta": _ROBERTA,
  "xlm-roberta": _ROBERTA,
  "camembert": _ROBERTA,
  "distilbert": Tensors(
    _layers(
      "transformer.layer",
      "attention.q_lin attention.k_lin attention.v_lin attention.out_lin "
      "sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm",
    ),
    _HEADS
    | {
      "ForSequenceClassification": _classification("pre_classifier", "classifier"),
      "ForMaskedLM": _mlm("vocab_projector.bias", "vocab_transform", "vocab_layer_norm"),
    },
    tied={"vocab_projector.weight": _WORDS},
  ),
  "deberta-v2": Tensors(
    _layers(
      "encoder.layer",
      "attention.self.query_proj attention.self.key_proj attention.self.value_proj attention.output.dense "
      "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
    ),
    _HEADS
    | _POOLED
    | {
      "ForMaskedLM": _MLM_OF_BERT,
      "ForMaskedLM, legacy false": _mlm(
        "lm_predictions.lm_head.bias", "lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm"
      ),
    },
    relative=(
      Row("encoder.rel_embeddings.weight", ("encoder/trunk/relative/embedding",), ("R", "D"), SAME),
      *norm("encoder.LayerNorm", "encoder/trunk/relative_norm"),
    ),
    beside=Part(
      (*_binary("dense", "classifier"), *norm("LayerNorm", "norm")), "heads/rtd/", "mask_predictions."
    ),
    tied=_OF_BERT,
  ),
  # Its names in files, which the class of transformers renames when it reads and writes them.
  "nomic_bert": Tensors(
    _gated_layers("encoder.layers", "attn.Wqkv attn.out_proj norm1 mlp.fc12 mlp.fc11 mlp.fc2 norm2"),
    {
      "ForSequenceClassification": _POOLED["ForSequenceClassification"],
      "ForTokenClassification": _HEADS["ForTokenClassification"],
      "ForMaskedLM": _mlm(
        "cls.predictions.bias", "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"
      ),
    },
    embedding_norm="emb_ln",
    tied=_OF_BERT,
  ),
  "layoutlmv3": Tensors(
    _BERT_LAYERS,
    # Question answering has the shape of a text classifier (`heads.linear_head_as_tanh`).
    _HEADS
    | {
      "ForQuestionAnswering": _classification("qa_outputs.dense", "qa_outputs.out_proj")._replace(
        path="heads/question_answering/"
      )
    },
  ),
}


def ties(layout: str) -> tuple[Tie, ...]:
  """Returns what a checkpoint of a class with post-norm layers may store twice."""
  return tuple(Tie(*names) for names in TENSORS[layout].tied.items())


def encoder_parts(layout: str, config: EncoderConfig, *, offset: int) -> tuple[Part, ...]:
  """Returns the parts of an encoder in a class with post-norm layers.

  `offset` is the first token's row in the position table; the rows before it are for padding, written as 0.
  """
  positions = Layout(
    lambda a, heads: [a[offset:]],
    lambda parts: np.concatenate([np.zeros((offset, parts[0].shape[1]), parts[0].dtype), parts[0]]),
  )
  embeddings = [Row(_WORDS, ("token/embedding",), ("V", "E"), SAME)]
  embeddings += norm(TENSORS[layout].embedding_norm, "norm", "E")
  if config.position == "learned":
    embeddings.append(Row(_POSITIONS, ("position/embedding",), ("P", "E"), positions))
  if config.token_size != config.hidden_size:
    embeddings += linear("embeddings_project", "projection", ("D", "E"))
  if config.num_segments:
    embeddings.append(Row(_SEGMENTS, ("segment/embedding",), ("T", "E"), SAME))
  parts = [
    Part(tuple(embeddings), "encoder/embeddings/", is_required=True),
    Part(TENSORS[layout].layers, "encoder/", is_required=True),
  ]
  if relative := TENSORS[layout].relative:
    parts.append(Part(relative, "", is_required=True))
  return tuple(parts)


def blank_tables(layout: str, *, has_segments: bool) -> tuple[str, ...]:
  """Returns the class's tables that are 0 in our models: unused segments, and coordinates on a page."""
  segments = (_SEGMENTS,) if CLASSES[layout].has_segments and not has_segments else ()
  return segments + (SPATIAL if layout == "layoutlmv3" else ())


# The upper half of Wi goes through the activation, the lower half is multiplied with it.
GATED_KERNEL = Layout(
  lambda a, heads: [half.T for half in np.split(a, 2)],
  lambda parts: np.concatenate([kernel.T for kernel in parts]),
)
GATED_BIAS = Layout(lambda a, heads: np.split(a, 2), np.concatenate)
_FOLLOWING = "layers.{}.following_norm"  # the norm of the next layer's attention, or the final norm


class PreNorm(NamedTuple):
  """The names of a class with pre-norm layers."""

  tokens: str
  embedding_norm: str  # '': there is none
  first_norm: str  # of layer 0, where the embeddings have none
  attention_norm: str  # of a layer; `{}` is its number
  mlp_norm: str
  final_norm: str
  linear: tuple[tuple, ...]  # arguments of `tensor_rows.linear`, without `layers.{}.` and `trunk/layers/`


_SQUARE = ("D", "D")
_LLAMA = PreNorm(
  "embed_tokens",
  "",
  "layers.0.input_layernorm",
  "layers.{}.input_layernorm",
  "layers.{}.post_attention_layernorm",
  "norm",
  linear=(
    ("self_attn.q_proj", "attention/query", _SQUARE, HEADS_KERNEL, HEADS_BIAS),
    ("self_attn.k_proj", "attention/key", ("K", "D"), HEADS_KERNEL, HEADS_BIAS),
    ("self_attn.v_proj", "attention/value", ("K", "D"), HEADS_KERNEL, HEADS_BIAS),
    ("self_attn.o_proj", "attention/output", _SQUARE, OUTPUT_KERNEL),
    ("mlp.gate_proj", "gate", ("F", "D")),
    ("mlp.up_proj", "up", ("F", "D")),
    ("mlp.down_proj", "down", ("D", "F")),
  ),
)
PRE_NORM = {
  "modernbert": PreNorm(
    "embeddings.tok_embeddings",
    "embeddings.norm",
    "",
    "layers.{}.attn_norm",
    "layers.{}.mlp_norm",
    "final_norm",
    linear=(
      ("attn.Wqkv", "attention/query|key|value", ("3D", "D"), QKV_KERNEL, QKV_BIAS),
      ("attn.Wo", "attention/output", _SQUARE, OUTPUT_KERNEL),
      ("mlp.Wi", "gate|up", ("2F", "D"), GATED_KERNEL, GATED_BIAS),
      ("mlp.Wo", "down", ("D", "F")),
    ),
  ),
  "ultrabert": _LLAMA,
  "eurobert": _LLAMA,
}


def shifted(state: State, layout: str, num_layers: int, *, to_ours: bool) -> State:
  """Returns tensors with the norms before attention named after the layer that computes them here, or back.

  Raises:
    DataError: the tensors have a norm in ModernBERT's first layer, which the class never has.
  """
  names, leaves = PRE_NORM[layout], ("weight", "bias")
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


def _grouped(layout: Layout, kv_heads: int) -> Layout:
  """Returns the layout of keys and values, whose heads may be fewer."""
  return Layout(lambda a, _: layout.read(a, kv_heads), layout.write)


def pre_norm_parts(layout: str, config: EncoderConfig) -> tuple[Part, ...]:
  """Returns the parts of an encoder in a class, of tensors that `shifted` renamed."""
  names, ours, has_bias = PRE_NORM[layout], "trunk/layers", config.norm_bias
  rows = [Row(f"{names.tokens}.weight", ("embeddings/token/embedding",), ("V", "D"), SAME)]
  if names.embedding_norm:
    rows += norm(names.embedding_norm, "embeddings/norm", has_bias=has_bias)
  else:
    rows += norm(names.first_norm, "trunk/first_norm", has_bias=has_bias)
  for name, path, shape, *layouts in names.linear:
    if shape[0] == "K":  # width of all heads of keys
      layouts = [_grouped(each, config.kv_heads) for each in layouts]
    biased = config.mlp_bias if name.startswith("mlp.") else config.attention_bias
    rows += linear(f"layers.{{}}.{name}", f"{ours}/{path}", shape, *layouts, has_bias=biased)
  rows += norm(names.mlp_norm, f"{ours}/attention_norm", has_bias=has_bias)
  rows += norm(_FOLLOWING, f"{ours}/mlp_norm", has_bias=has_bias)
  return (Part(tuple(rows), "encoder/", is_required=True),)


def pre_norm_heads(layout: str, config: EncoderConfig) -> dict[str, Part]:
  """Returns {end of the class's name: its head} of a layout, in the order in which they are written."""
  labels, output = (linear("classifier", path, ("C", "D")) for path in ("", "output"))
  if layout == "modernbert":
    dense = linear("head.dense", "dense", _SQUARE, has_bias=config.norm_bias)
    transform = (*dense, *norm("head.norm", "norm", has_bias=config.norm_bias))
    bias = Row("decoder.bias", ("bias",), ("V",), SAME)
    return {
      "ForSequenceClassification": Part((*transform, *output), "heads/classification/"),
      "ForTokenClassification": Part((*transform, *labels), "heads/tagging/"),
      "ForQuestionAnswering": Part((*transform, *labels), "heads/question_answering/"),
      "ForMaskedLM": Part((bias, *transform), "heads/mlm/"),
    }
  tagging = {"ForTokenClassification": Part(labels, "heads/tagging/")}
  if layout == "eurobert":  # its text classifier has no counterpart here
    table = Row("lm_head.weight", ("table/embedding",), ("V", "D"), SAME)
    bias = [Row("lm_head.bias", ("bias",), ("V",), SAME)] * config.mlp_bias
    return tagging | {"ForMaskedLM": Part((table, *bias), "heads/mlm/")}
  return tagging | {
    "ForSequenceClassification": Part(output, "heads/classification/"),
    "ForQuestionAnswering": Part(linear("qa_outputs", "", ("2", "D")), "heads/question_answering/"),
  }
