"""One table of names: the official fairseq and Hugging Face checkpoints and our parameter paths.

Every row says what a tensor is called in both, where it lives here, its shape and how the arrays differ;
import and export both walk this table (`tensor_rows` knows how). Arrays are numpy; nothing here reads
files.

Source of the names: COCO-LM fairseq/fairseq/models/cocolm/model.py, AMOS .../amos/model.py, COCO-LM
huggingface/cocolm/modeling_cocolm.py.
"""

import re
from collections.abc import Collection

import numpy as np

from data.errors import DataError
from pretrain.export.tensor_rows import (
  LINEAR,
  OUTPUT_KERNEL,
  QKV_BIAS,
  QKV_KERNEL,
  SAME,
  Imported,
  Layout,
  Part,
  Row,
  State,
  Tie,
  read,
  write,
)


def _linear(
  fairseq: str, hugging_face: str, path: str, shape: tuple[str, str], kernel: Layout = LINEAR
) -> tuple[Row, Row]:
  return (
    Row(f"{fairseq}.weight", f"{hugging_face}.weight", (f"{path}/kernel",), shape, kernel),
    Row(f"{fairseq}.bias", f"{hugging_face}.bias", (f"{path}/bias",), shape[:1], SAME),
  )


def _norm(fairseq: str, hugging_face: str, path: str, size: str = "D") -> tuple[Row, Row]:
  return (
    Row(f"{fairseq}.weight", f"{hugging_face}.weight", (f"{path}/scale",), (size,), SAME),
    Row(f"{fairseq}.bias", f"{hugging_face}.bias", (f"{path}/bias",), (size,), SAME),
  )


def _table(fairseq: str | None, hugging_face: str, path: str, shape: tuple[str, str]) -> Row:
  return Row(fairseq, hugging_face, (f"{path}/embedding",), shape, SAME)


_ATTENTION = "trunk/layers/attention"
_QKV = ("query", "key", "value")
_FAIRSEQ_ATTENTION = "layers.{}.self_attn"
_HF_LAYER = "encoder.layer.{}"
_HF_ATTENTION = f"{_HF_LAYER}.attention.self_attn"

TOKENS = (_table("embed_tokens.weight", "embeddings.word_embeddings.weight", "token", ("V", "D")),)
POSITIONS = (
  _table("embed_positions.weight", "embeddings.position_embeddings.weight", "position", ("P", "D")),
  *_norm("emb_layer_norm", "embeddings.LayerNorm", "norm"),
)
SEGMENTS = (_table(None, "embeddings.token_type_embeddings.weight", "segment", ("T", "D")),)
LAYERS = (
  Row(
    f"{_FAIRSEQ_ATTENTION}.in_proj.weight",
    f"{_HF_ATTENTION}.in_proj.weight",
    tuple(f"{_ATTENTION}/{name}/kernel" for name in _QKV),
    ("3D", "D"),
    QKV_KERNEL,
  ),
  Row(
    f"{_FAIRSEQ_ATTENTION}.in_proj.bias",
    f"{_HF_ATTENTION}.in_proj.bias",
    tuple(f"{_ATTENTION}/{name}/bias" for name in _QKV),
    ("3D",),
    QKV_BIAS,
  ),
  *_linear(
    f"{_FAIRSEQ_ATTENTION}.out_proj",
    f"{_HF_ATTENTION}.out_proj",
    f"{_ATTENTION}/output",
    ("D", "D"),
    OUTPUT_KERNEL,
  ),
  *_norm("layers.{}.self_attn_layer_norm", f"{_HF_LAYER}.attention.LayerNorm", "trunk/layers/attention_norm"),
  *_linear("layers.{}.fc1", f"{_HF_LAYER}.intermediate.dense", "trunk/layers/up", ("F", "D")),
  *_linear("layers.{}.fc2", f"{_HF_LAYER}.output.dense", "trunk/layers/down", ("D", "F")),
  *_norm("layers.{}.final_layer_norm", f"{_HF_LAYER}.output.LayerNorm", "trunk/layers/mlp_norm"),
)
RELATIVE = (
  _table(
    "relative_attention_bias.weight", "relative_attention_bias.weight", "trunk/relative_position", ("R", "A")
  ),
)
CONTRAST = "scl"  # our name of the head that official code calls its sequence contrast
HEADS = ("rtd", "clm", CONTRAST, "mlm")
RTD_HEAD = _linear("out_proj", "out_proj", "rtd", ("1", "D"))
CLM_HEAD = (Row("bias", "bias", ("clm/bias",), ("V",), SAME),)
SCL_HEAD = (
  *_linear("dense", "dense", "scl/dense", ("S", "D")),
  *_norm("layer_norm", "LayerNorm", "scl/norm", "S"),
)
MLM_HEAD = (
  Row("bias", "bias", ("mlm_head/bias",), ("V",), SAME),
  *_linear("dense", "dense", "mlm_head/dense", ("D", "D")),
  *_norm("layer_norm", "LayerNorm", "mlm_head/norm"),
)
CLASSIFICATION_HEAD = (
  *_linear("dense", "dense", "classification/dense", ("D", "D")),
  *_linear("out_proj", "out_proj", "classification/output", ("C", "D")),
)
# Start and end are one array here, as in stock classes; `_join_span_head` makes these names.
SPAN_HEAD = (
  Row("weight", "weight", ("question_answering/kernel",), ("2", "D"), LINEAR),
  Row("bias", "bias", ("question_answering/bias",), ("2",), SAME),
)
MIXTURE = (Row("layer_mixture.weight", None, ("mixture/kernel",), ("1", "D"), LINEAR),)

_FAIRSEQ_CLASSIFICATION = "classification_heads.sentence_classification_head."
_FAIRSEQ_SPAN, _HF_SPAN = "classification_heads.question_answering_head.", "qa_outputs."
_MAIN, _AUXILIARY = "encoder.sentence_encoder.", "auxiliary.sentence_encoder."
ENCODER_PARTS = (
  Part(TOKENS, "encoder/embeddings/", _MAIN, "", is_required=True),
  Part(POSITIONS, "encoder/embeddings/", _MAIN, "", is_required=True),
  Part(SEGMENTS, "encoder/embeddings/", None, ""),
  Part(LAYERS, "encoder/", _MAIN, "", is_required=True),
  Part(RELATIVE, "encoder/", _MAIN, ""),
  Part(RTD_HEAD, "heads/", "encoder.binary_head.", "binary_head."),
  Part(CLM_HEAD, "heads/", "encoder.lm_head.", "clm_head."),
  Part(SCL_HEAD, "heads/", "encoder.seq_head.", "scl_head."),
  Part(CLASSIFICATION_HEAD, "heads/", _FAIRSEQ_CLASSIFICATION, "classifier."),
  Part(SPAN_HEAD, "heads/", _FAIRSEQ_SPAN, _HF_SPAN),
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

_FAIRSEQ_TABLE = TOKENS[0].fairseq
_HF_TABLE = TOKENS[0].hugging_face
_HF_TIES = (
  Tie("clm_head.decoder.weight", _HF_TABLE, "heads/clm/bias"),
  Tie("clm_head.decoder.bias", "clm_head.bias", "heads/clm/bias"),
)


def _fairseq_table(share_embeddings: str) -> tuple[tuple[Part, ...], tuple[Tie, ...]]:
  """Parts and ties of a fairseq checkpoint; a generator lists what it shares a second time."""
  own = {"all": (), "tokens": (OWN_POSITIONS,), "none": (OWN_TOKENS, OWN_POSITIONS)}[share_embeddings]
  owned = [part.rows for part in own]
  shared = [row.fairseq for rows in (TOKENS, POSITIONS) if rows not in owned for row in rows]
  table_owner = _AUXILIARY if TOKENS in owned else _MAIN
  in_generator = "generator/mlm_head/bias"
  ties = (
    *(Tie(_AUXILIARY + name, _MAIN + name, in_generator) for name in shared),
    Tie("auxiliary.lm_head.weight", table_owner + _FAIRSEQ_TABLE, in_generator),
    Tie("encoder.lm_head.weight", _MAIN + _FAIRSEQ_TABLE, "heads/clm/bias"),
  )
  return (*ENCODER_PARTS, *own, *GENERATOR_PARTS), ties


def _span_names(prefix: str, leaf: str) -> list[str]:
  return [f"{prefix}{side}_logits.dense.{leaf}" for side in ("start", "end")]


def _join_span_head(state: State, prefix: str) -> State:
  """The two linear layers of a question-answering head, (1, D) each, as one of (2, D)."""
  state = dict(state)
  for leaf in ("weight", "bias"):
    names = _span_names(prefix, leaf)
    if not all(name in state for name in names):
      continue
    start, end = (np.asarray(state.pop(name)) for name in names)
    if start.shape != end.shape or start.shape[:1] != (1,):
      raise DataError(
        f"checkpoint: tensors {names[0]} and {names[1]} have shapes {start.shape} and {end.shape}, expected "
        "one row each of the same width; check the checkpoint"
      )
    state[prefix + leaf] = np.concatenate([start, end])
  return state


def _split_span_head(state: State, prefix: str) -> State:
  """The inverse of `_join_span_head`."""
  for leaf in ("weight", "bias"):
    if prefix + leaf in state:
      state |= dict(zip(_span_names(prefix, leaf), np.split(state.pop(prefix + leaf), 2)))
  return state


def _requiring(parts: tuple[Part, ...], required: Collection[tuple[Row, ...]]) -> tuple[Part, ...]:
  """The parts, with those of an encoder that are made of such rows required."""
  return tuple(
    part._replace(is_required=True) if part.path.startswith("encoder/") and part.rows in required else part
    for part in parts
  )


def from_fairseq(
  state: State,
  *,
  num_heads: int,
  share_embeddings: str = "all",
  required: Collection[tuple[Row, ...]] = (),
) -> Imported:
  """Our parameters from the `model` dict of a fairseq `model.pt`.

  Names are those of `COCOLM_Model` or `AMOS_Model`; the old prefix `decoder.` is read as `encoder.`. The
  generator, which shares 'all' (sample mode 'eval' or 'train'), 'tokens' ('zero-dropout') or 'none' of the
  embeddings, and each head are read where the checkpoint has them; the encoder's `RELATIVE` may be
  `required`. DataError: as in `tensor_rows.read`.
  """
  state = {re.sub(r"^decoder\.", "encoder.", name): array for name, array in state.items()}
  state = _join_span_head(state, _FAIRSEQ_SPAN)
  parts, ties = _fairseq_table(share_embeddings)
  return read(state, _requiring(parts, required), "fairseq", num_heads=num_heads, ties=ties)


def from_hugging_face(
  state: State, *, num_heads: int, required: Collection[tuple[Row, ...]] = ()
) -> Imported:
  """Our parameters from the tensors of a Hugging Face `COCOLMModel` or `AMOSModel`.

  Names are with or without the prefix `cocolm.` or `amos.`; heads are `binary_head.`, `clm_head.`,
  `scl_head.`, `classifier.` and `qa_outputs.`; `RELATIVE` and `SEGMENTS` may be `required`. DataError: as in
  `tensor_rows.read`.
  """
  state = {re.sub(r"^(cocolm|amos)\.", "", name): array for name, array in state.items()}
  state = _join_span_head(state, _HF_SPAN)
  parts = _requiring(ENCODER_PARTS, required)
  return read(state, parts, "hugging_face", num_heads=num_heads, ties=_HF_TIES)


def sharing_of(params: dict) -> str:
  """What the generator in a tree of parameters shares with the encoder, as `generator.share_embeddings`."""
  own = params.get("generator", {}).get("embeddings", {})
  return "none" if "token" in own else "tokens" if own else "all"


def to_fairseq(params: dict) -> State:
  """{fairseq name: array} of parameters, or of any tree of their structure, such as gradients.

  Tied tensors are listed under every name they have there.
  """
  parts, ties = _fairseq_table(sharing_of(params))
  return _split_span_head(write(params, parts, "fairseq", ties=ties), _FAIRSEQ_SPAN)


def to_hugging_face(params: dict) -> State:
  """{Hugging Face name: array} of the encoder and its heads; a generator has no names there."""
  return _split_span_head(write(params, ENCODER_PARTS, "hugging_face", ties=_HF_TIES), _HF_SPAN)
