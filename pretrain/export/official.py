"""Reads official COCO-LM and AMOS checkpoints, of fairseq and of the Hugging Face port: tensors and settings.

Every row has the fairseq name of a tensor, our paths, its shape, and the conversion of its array.
`_PORT_NAMES` turns fairseq names into those of the Hugging Face port.

Sizes come from the settings, or else from the tensors. `recognise.check_encoder` compares the two, so that a
checkpoint without its last layers is not taken for a smaller model.

Source of the names: COCO-LM fairseq/fairseq/models/cocolm/model.py, AMOS .../amos/model.py, COCO-LM
huggingface/cocolm/modeling_cocolm.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from data.errors import ConfigError, DataError
from pretrain.export.stock.config import SIZES, integer, number, refuse_others
from pretrain.export.tensor_rows import (
  LINEAR,
  OUTPUT_KERNEL,
  QKV_BIAS,
  QKV_KERNEL,
  SAME,
  Imported,
  Part,
  Row,
  State,
  Tie,
  linear,
  norm,
  read,
)

_FAIRSEQ_SIZES = {
  "num_layers": "encoder_layers",
  "hidden_size": "encoder_embed_dim",
  "mlp_size": "encoder_ffn_embed_dim",
  "num_heads": "encoder_attention_heads",
}
_PORT_SIZES = SIZES | {"num_segments": "type_vocab_size"}
# Settings, and the values that this encoder supports.
_FAIRSEQ_ONLY = {"activation_fn": ("gelu",)}
_PORT_ONLY = {"hidden_act": ("gelu",), "layer_norm_type": ("post",)}

_ATTENTION = "trunk/layers/attention"

TOKENS = (Row("embed_tokens.weight", ("token/embedding",), ("V", "D"), SAME),)
POSITIONS = (
  Row("embed_positions.weight", ("position/embedding",), ("P", "D"), SAME),
  *norm("emb_layer_norm", "norm"),
)
LAYERS = (
  *linear("layers.{}.self_attn.in_proj", f"{_ATTENTION}/query|key|value", ("3D", "D"), QKV_KERNEL, QKV_BIAS),
  *linear("layers.{}.self_attn.out_proj", f"{_ATTENTION}/output", ("D", "D"), OUTPUT_KERNEL),
  *norm("layers.{}.self_attn_layer_norm", "trunk/layers/attention_norm"),
  *linear("layers.{}.fc1", "trunk/layers/up", ("F", "D")),
  *linear("layers.{}.fc2", "trunk/layers/down", ("D", "F")),
  *norm("layers.{}.final_layer_norm", "trunk/layers/mlp_norm"),
)
RELATIVE = (Row("relative_attention_bias.weight", ("trunk/relative_position/embedding",), ("R", "A"), SAME),)
MLM_HEAD = (
  Row("bias", ("mlm_head/bias",), ("V",), SAME),
  *linear("dense", "mlm_head/dense", ("D", "D")),
  *norm("layer_norm", "mlm_head/norm"),
)
MIXTURE = (Row("layer_mixture.weight", ("mixture/kernel",), ("1", "D"), LINEAR),)
# One array for start and end, as in stock classes; `_join_span_head` makes these names.
SPAN_HEAD = (
  Row("weight", ("question_answering/kernel",), ("2", "D"), LINEAR),
  Row("bias", ("question_answering/bias",), ("2",), SAME),
)

_MAIN, _AUXILIARY = "encoder.sentence_encoder.", "auxiliary.sentence_encoder."
_CLASSIFICATION = "classification_heads.sentence_classification_head."
_SPAN, _PORT_SPAN = "classification_heads.question_answering_head.", "qa_outputs."
ENCODER_PARTS = (
  Part(TOKENS, "encoder/embeddings/", _MAIN, is_required=True),
  Part(POSITIONS, "encoder/embeddings/", _MAIN, is_required=True),
  Part(LAYERS, "encoder/", _MAIN, is_required=True),
  Part(RELATIVE, "encoder/", _MAIN),
  Part(linear("out_proj", "rtd", ("1", "D")), "heads/", "encoder.binary_head."),
  Part((Row("bias", ("clm/bias",), ("V",), SAME),), "heads/", "encoder.lm_head."),
  Part(
    (*linear("dense", "scl/dense", ("S", "D")), *norm("layer_norm", "scl/norm", "S")),
    "heads/",
    "encoder.seq_head.",
  ),
  Part(
    (*linear("dense", "dense", ("D", "D")), *linear("out_proj", "output", ("C", "D"))),
    "heads/classification/",
    _CLASSIFICATION,
  ),
  Part(SPAN_HEAD, "heads/", _SPAN),
)
GENERATOR_HEAD_PARTS = (
  Part(MLM_HEAD, "generator/", "auxiliary.lm_head.", is_required=True),
  Part(MIXTURE, "generator/", "auxiliary.lm_head."),
)
GENERATOR_PARTS = (
  Part(LAYERS, "generator/", _AUXILIARY, is_required=True),
  Part(RELATIVE, "generator/", _AUXILIARY),
  *GENERATOR_HEAD_PARTS,
)
OWN_POSITIONS = Part(POSITIONS, "generator/embeddings/", _AUXILIARY, is_required=True)
OWN_TOKENS = Part(TOKENS, "generator/embeddings/", _AUXILIARY, is_required=True)

# {part of a fairseq name: part of the port's name}, replaced in this order.
_PORT_NAMES = {
  _MAIN: "",
  "layers.": "encoder.layer.",
  "self_attn_layer_norm": "attention.LayerNorm",
  "self_attn.": "attention.self_attn.",
  "fc1": "intermediate.dense",
  "fc2": "output.dense",
  "final_layer_norm": "output.LayerNorm",
  "embed_tokens": "embeddings.word_embeddings",
  "embed_positions": "embeddings.position_embeddings",
  "emb_layer_norm": "embeddings.LayerNorm",
  "encoder.binary_head": "binary_head",
  "encoder.lm_head": "clm_head",
  "encoder.seq_head.layer_norm": "scl_head.LayerNorm",
  "encoder.seq_head": "scl_head",
  _CLASSIFICATION: "classifier.",
  _SPAN: _PORT_SPAN,
}


def _port_name(name: str) -> str:
  for fairseq, port in _PORT_NAMES.items():
    name = name.replace(fairseq, port)
  return name


PORT_PARTS = (
  *(
    part._replace(
      rows=tuple(row._replace(name=_port_name(part.prefix + row.name)) for row in part.rows), prefix=""
    )
    for part in ENCODER_PARTS
  ),
  Part(
    (Row("embeddings.token_type_embeddings.weight", ("segment/embedding",), ("T", "D"), SAME),),
    "encoder/embeddings/",
  ),
)
_PORT_TIES = (
  Tie("clm_head.decoder.weight", _port_name(f"{_MAIN}embed_tokens.weight"), "heads/clm/bias"),
  Tie("clm_head.decoder.bias", "clm_head.bias", "heads/clm/bias"),
)


def fairseq_parts(share_embeddings: str) -> tuple[tuple[Part, ...], tuple[Tie, ...]]:
  """Returns a fairseq checkpoint's tensors as `Part`s, and as `Tie`s those that repeat another tensor."""
  own = {"all": (), "tokens": (OWN_POSITIONS,), "none": (OWN_TOKENS, OWN_POSITIONS)}[share_embeddings]
  owned = [part.rows for part in own]
  shared = [row.name for rows in (TOKENS, POSITIONS) if rows not in owned for row in rows]
  table_owner = _AUXILIARY if TOKENS in owned else _MAIN
  in_generator = "generator/mlm_head/bias"
  ties = (
    *(Tie(_AUXILIARY + name, _MAIN + name, in_generator) for name in shared),
    Tie("auxiliary.lm_head.weight", f"{table_owner}embed_tokens.weight", in_generator),
    Tie("encoder.lm_head.weight", f"{_MAIN}embed_tokens.weight", "heads/clm/bias"),
  )
  return (*ENCODER_PARTS, *own, *GENERATOR_PARTS), ties


def _join_span_head(state: State, prefix: str) -> State:
  """Joins the two linear layers of a question-answering head, (1, D) each, into one of (2, D)."""
  state = dict(state)
  for leaf in ("weight", "bias"):
    names = [f"{prefix}{side}_logits.dense.{leaf}" for side in ("start", "end")]
    if all(name in state for name in names) and len({np.shape(state[name]) for name in names}) == 1:
      start, end = (state.pop(name) for name in names)
      state[prefix + leaf] = np.concatenate([start, end])
  return state


def from_fairseq(state: State, *, num_heads: int, share_embeddings: str = "all") -> Imported:
  """Reads our parameters from the `model` dict of a fairseq `model.pt`.

  Names are those of `COCOLM_Model` or `AMOS_Model`; the old prefix `decoder.` is read as `encoder.`. The
  generator and each head are read if the checkpoint has them. The generator shares 'all' (sample mode 'eval'
  or 'train'), 'tokens' ('zero-dropout') or 'none' of the embeddings. DataError: see `tensor_rows.read`.
  """
  state = {re.sub(r"^decoder\.", "encoder.", name): array for name, array in state.items()}
  parts, ties = fairseq_parts(share_embeddings)
  return read(_join_span_head(state, _SPAN), parts, num_heads=num_heads, ties=ties)


def from_hugging_face(state: State, *, num_heads: int) -> Imported:
  """Reads our parameters from the tensors of a Hugging Face `COCOLMModel` or `AMOSModel`.

  The prefix `cocolm.` or `amos.` is optional; heads are `binary_head.`, `clm_head.`, `scl_head.`,
  `classifier.` and `qa_outputs.`. DataError: see `tensor_rows.read`.
  """
  state = {re.sub(r"^(cocolm|amos)\.", "", name): array for name, array in state.items()}
  return read(_join_span_head(state, _PORT_SPAN), PORT_PARTS, num_heads=num_heads, ties=_PORT_TIES)


def fairseq_fields(settings: Mapping[str, Any], params: dict) -> dict[str, Any]:
  """Returns the fields of `model` in `configs/base.py` for a fairseq checkpoint.

  `settings` may be {}. The fields are sizes, relative_position and its distance, layer_norm_eps (fixed in
  fairseq), and the two dropouts if the settings have them. DataError: a setting is missing or unsupported.
  """
  refuse_others(settings, _FAIRSEQ_ONLY)
  fields = _stated(settings, params, _FAIRSEQ_SIZES, is_relative=settings.get("rel_pos"))
  return fields | {"layer_norm_eps": 1e-5} | _rates(settings, "dropout", "attention_dropout")


def port_fields(config: Mapping[str, Any], params: dict) -> dict[str, Any]:
  """Returns the fields of `model` for the official Hugging Face port from its config.json."""
  epsilon = number(config, "layer_norm_eps", 1e-12)
  refuse_others(config, _PORT_ONLY)
  fields = _stated(config, params, _PORT_SIZES, is_relative=config.get("rel_pos_bins"))
  rates = _rates(config, "hidden_dropout_prob", "attention_probs_dropout_prob")
  return fields | {"layer_norm_eps": epsilon} | rates


def sizes(params: dict, *, has_positions: bool = True) -> dict[str, int]:
  """Reads the sizes of an encoder from the shapes of its parameters, by their names in `model`.

  Without `has_positions` (a table of positions) max_length is left out, and without relative positions
  relative_buckets. Without a table of segments num_segments is 0. DataError: a parameter is missing or has
  another number of axes.
  """
  vocab_size, token_size = _shape(params, "embeddings/token/embedding", 2)
  num_layers, hidden_size, num_heads, _ = _shape(params, "trunk/layers/attention/query/kernel", 4)
  lengths = {
    "vocab_size": vocab_size,
    "hidden_size": hidden_size,
    "num_layers": num_layers,
    "num_heads": num_heads,
    "mlp_size": _shape(params, "trunk/layers/up/kernel", 3)[2],
    "num_segments": 0,
  }
  if token_size != hidden_size:
    lengths["embedding_size"] = token_size
  if has_positions:
    lengths["max_length"] = _shape(params, "embeddings/position/embedding", 2)[0]
  if "segment" in params["encoder"]["embeddings"]:
    lengths["num_segments"] = _shape(params, "embeddings/segment/embedding", 2)[0]
  if "relative_position" in params["encoder"]["trunk"]:
    lengths["relative_buckets"] = _shape(params, "trunk/relative_position/embedding", 2)[0]
  return lengths


def _shape(params: dict, path: str, num_axes: int) -> tuple[int, ...]:
  leaf: Any = params.get("encoder")
  for name in path.split("/"):
    leaf = leaf.get(name) if isinstance(leaf, Mapping) else None
  shape = None if leaf is None or isinstance(leaf, Mapping) else np.shape(leaf)
  if shape is None or len(shape) != num_axes or 0 in shape:
    what = "missing" if shape is None else f"of shape {shape}"
    raise DataError(
      f"checkpoint: encoder/{path} is {what}; expected {num_axes} axes; check that all its files are there"
    )
  return shape


def find_num_heads(settings: Mapping[str, Any], name: str, state: State, flag: int | None) -> int:
  """Returns the number of heads: `flag`, the setting `name`, or the columns of the relative table.

  ConfigError: the number is unknown, or `flag` contradicts the settings. DataError: the setting is not a
  number above 0.
  """
  tables = [array for key, array in state.items() if key.endswith("relative_attention_bias.weight")]
  stated = settings.get(name, tables[0].shape[-1] if tables and tables[0].ndim == 2 else None)
  if stated is not None:
    integer({name: stated}, name)
  if flag is not None and stated not in (None, flag):
    raise ConfigError(f"--num_heads={flag}: the checkpoint has {stated} heads; use\n  --num_heads={stated}")
  num_heads = flag or stated
  if not num_heads or num_heads < 1:
    raise ConfigError(
      "the checkpoint's files do not contain the number of attention heads; give it with\n  --num_heads=12"
    )
  return num_heads


def find_sharing(state: State) -> str:
  """Returns what a fairseq generator shares with the encoder, as in `generator.share_embeddings`.

  Equal tensors of both networks count as shared.
  """

  def is_shared(name: str) -> bool:
    own = state.get(f"auxiliary.sentence_encoder.{name}")
    main = (state.get(f"{prefix}.sentence_encoder.{name}") for prefix in ("encoder", "decoder"))
    return own is None or any(other is not None and np.array_equal(own, other) for other in main)

  if not is_shared("embed_tokens.weight"):
    return "none"
  rest = ("embed_positions.weight", "emb_layer_norm.weight", "emb_layer_norm.bias")
  return "all" if all(map(is_shared, rest)) else "tokens"


def _stated(
  settings: Mapping[str, Any], params: dict, names: Mapping[str, str], *, is_relative: Any
) -> dict[str, Any]:
  """Returns sizes and relative positions; raises DataError if settings and tensors contradict each other."""
  fields: dict[str, Any] = sizes(params)
  has_table = "relative_buckets" in fields
  if is_relative is not None and bool(is_relative) != has_table:
    raise DataError(
      f"checkpoint: its settings have {'' if is_relative else 'no '}relative positions, but the tensor "
      f"relative_attention_bias.weight is {'present' if has_table else 'missing'}; check that all its files "
      "are there"
    )
  fields["relative_position"] = "official" if has_table else "none"
  if has_table:
    names = {**names, "relative_buckets": "rel_pos_bins"}
    fields["relative_max_distance"] = integer(settings, "max_rel_pos")
  stated = {field: settings.get(name) for field, name in names.items()}
  return fields | {field: value for field, value in stated.items() if value is not None}


def _rates(settings: Mapping[str, Any], dropout: str, attention: str) -> dict[str, float]:
  rates = {"dropout": settings.get(dropout), "attention_dropout": settings.get(attention)}
  return {
    name: float(rate)
    for name, rate in rates.items()
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate < 1
  }
