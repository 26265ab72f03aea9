"""Maps tensor names of official fairseq and Hugging Face checkpoints to our parameter paths, by one table.

Every row has the fairseq name of a tensor, our paths, its shape, and the conversion of its array.
`_PORT_NAMES` turns fairseq names into those of the Hugging Face port. Import and export use the same table,
on numpy arrays.

Source of the names: COCO-LM fairseq/fairseq/models/cocolm/model.py, AMOS .../amos/model.py, COCO-LM
huggingface/cocolm/modeling_cocolm.py.
"""

import re

import numpy as np

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
  write,
)

_ATTENTION = "trunk/layers/attention"
_QKV = ("query", "key", "value")

TOKENS = (Row("embed_tokens.weight", ("token/embedding",), ("V", "D"), SAME),)
POSITIONS = (
  Row("embed_positions.weight", ("position/embedding",), ("P", "D"), SAME),
  *norm("emb_layer_norm", "norm"),
)
LAYERS = (
  Row(
    "layers.{}.self_attn.in_proj.weight",
    tuple(f"{_ATTENTION}/{name}/kernel" for name in _QKV),
    ("3D", "D"),
    QKV_KERNEL,
  ),
  Row(
    "layers.{}.self_attn.in_proj.bias",
    tuple(f"{_ATTENTION}/{name}/bias" for name in _QKV),
    ("3D",),
    QKV_BIAS,
  ),
  *linear("layers.{}.self_attn.out_proj", f"{_ATTENTION}/output", ("D", "D"), OUTPUT_KERNEL),
  *norm("layers.{}.self_attn_layer_norm", "trunk/layers/attention_norm"),
  *linear("layers.{}.fc1", "trunk/layers/up", ("F", "D")),
  *linear("layers.{}.fc2", "trunk/layers/down", ("D", "F")),
  *norm("layers.{}.final_layer_norm", "trunk/layers/mlp_norm"),
)
RELATIVE = (Row("relative_attention_bias.weight", ("trunk/relative_position/embedding",), ("R", "A"), SAME),)
CONTRAST = "scl"  # our name of the official sequence-contrast head
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


def _span_names(prefix: str, leaf: str) -> list[str]:
  return [f"{prefix}{side}_logits.dense.{leaf}" for side in ("start", "end")]


def _join_span_head(state: State, prefix: str) -> State:
  """Joins the two linear layers of a question-answering head, (1, D) each, into one of (2, D)."""
  state = dict(state)
  for leaf in ("weight", "bias"):
    names = _span_names(prefix, leaf)
    if all(name in state for name in names) and len({np.shape(state[name]) for name in names}) == 1:
      start, end = (state.pop(name) for name in names)
      state[prefix + leaf] = np.concatenate([start, end])
  return state


def _split_span_head(state: State, prefix: str) -> State:
  """Inverts `_join_span_head`."""
  for leaf in ("weight", "bias"):
    if prefix + leaf in state:
      state |= dict(zip(_span_names(prefix, leaf), np.split(state.pop(prefix + leaf), 2)))
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


def sharing_of(params: dict) -> str:
  """Returns what the generator shares with the encoder, as in `generator.share_embeddings`."""
  own = params.get("generator", {}).get("embeddings", {})
  return "none" if "token" in own else "tokens" if own else "all"


def to_fairseq(params: dict) -> State:
  """Converts parameters, or a tree of the same structure such as gradients, to {fairseq name: array}.

  Tied tensors are stored under each of their names.
  """
  parts, ties = fairseq_parts(sharing_of(params))
  return _split_span_head(write(params, parts, ties=ties), _SPAN)


def to_hugging_face(params: dict) -> State:
  """Converts the encoder and its heads to {Hugging Face name: array}; the port has no generator."""
  return _split_span_head(write(params, PORT_PARTS, ties=_PORT_TIES), _PORT_SPAN)
