"""Reads our parameters from stock transformers models: BERT, ELECTRA, MPNet, and our own LayoutLMv3."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from data.errors import DataError
from pretrain.export.folders import PRE_NORM
from pretrain.export.stock import pre_norm, pre_norm_heads
from pretrain.export.stock.config import encoder_fields
from pretrain.export.stock.forms import (
  binary_head_from_dense,
  distance_bins,
  distance_rows,
  linear_head_from_tanh,
)
from pretrain.export.stock.tables import (
  DISTANCES,
  HEADS,
  RELATIVE_PATH,
  TIES,
  WIDE_TAGGING,
  blank_tables,
  encoder_parts,
)
from pretrain.export.tensor_rows import Imported, State, Tie, put, read
from pretrain.models.layers import EncoderConfig


def from_stock(
  state: State, config_json: Mapping[str, Any], *, extra: Mapping[str, np.ndarray] | None = None
) -> Imported:
  """Reads our parameters from the tensors of a stock model.

  Heads are read if ours compute the same: masked LM, ELECTRA's discriminator, linear question answering, text
  classification with two layers and token classification with one (if `architectures` has it). MPNet's
  position rows for padding are dropped. A pooler is among the unmatched names.

  The base model's prefix in names is optional. `extra` is {our path: float32 array} from an export's
  `extra.safetensors`; its arrays are added. DataError: see `encoder_fields` and `tensor_rows.read`, or
  `extra` belongs to another export.
  """
  fields, extra = encoder_fields(config_json), dict(extra or {})
  layout = config_json["model_type"]
  if layout in PRE_NORM:
    return _with_extra(_from_pre_norm(state, config_json, EncoderConfig(**fields)), extra)
  state = _plain(state, layout)
  names = {*state}
  _take_blank(state, layout, fields)
  if layout == "layoutlmv3":
    _take_distances(state, EncoderConfig(**fields), extra)
  offset = config_json["max_position_embeddings"] - fields["max_length"]
  named = str(config_json.get("architectures"))
  heads = {
    name: part for name, part in HEADS[layout].items() if not name.endswith("Classification") or name in named
  }
  if "ForTokenClassification" in heads and "classifier.dense.weight" in state:
    heads["ForTokenClassification"] = WIDE_TAGGING
  imported = read(
    state,
    (*encoder_parts(layout, offset=offset, has_segments=bool(fields["num_segments"])), *heads.values()),
    num_heads=fields["num_heads"],
    ties=TIES[layout],
    sizes={
      "D": fields["hidden_size"],
      "V": fields["vocab_size"],
      "F": fields["mlp_size"],
      "P": fields["max_length"] + offset,
      "R": fields.get("relative_buckets", 0),
      "T": fields["num_segments"],
    },
  )
  taken = names - {*state}  # tables without effect in our encoder
  return _with_extra(_own_heads(imported._replace(matched=tuple(sorted({*imported.matched, *taken})))), extra)


def _with_extra(imported: Imported, extra: Mapping[str, np.ndarray]) -> Imported:
  for path, array in extra.items():
    put(imported.params, path, array)
  return imported


def _from_pre_norm(state: State, config_json: Mapping[str, Any], config: EncoderConfig) -> Imported:
  """Does `from_stock` for a class with pre-norm layers."""
  layout = config_json["model_type"]
  state = in_class(state, layout)
  named, heads = str(config_json.get("architectures")), pre_norm.head_parts(layout, config)
  kind = next(
    (ending for ending in heads if ending in named), "ForMaskedLM" if "decoder.bias" in state else ""
  )
  imported = read(
    pre_norm.shifted(state, layout, config.num_layers, to_ours=True),
    (*pre_norm.encoder_parts(layout, config), *((heads[kind],) if kind in heads else ())),
    num_heads=config.num_heads,
    ties=(Tie("decoder.weight", f"{pre_norm.NAMES[layout].tokens}.weight"),),
    sizes={"D": config.hidden_size, "V": config.vocab_size, "F": config.mlp_size},
  )
  own = pre_norm_heads.own_heads(imported.params, config, config_json)
  unmatched, matched = (
    tuple(
      sorted(pre_norm.shifted(dict.fromkeys(names, np.empty(0)), layout, config.num_layers, to_ours=False))
    )
    for names in (imported.unmatched, imported.matched)
  )
  return Imported(imported.params | ({"heads": own} if own else {}), unmatched, matched)


def _own_heads(imported: Imported) -> Imported:
  """Converts heads to our form; an unsupported token head of LayoutLMv3 becomes unmatched."""
  params, unmatched = imported.params, imported.unmatched
  heads = params.get("heads", {})
  if "rtd" in heads:
    heads["rtd"] = binary_head_from_dense(heads["rtd"])
  for head, name in (("question_answering", "qa_outputs"), ("tagging", "classifier")):
    if "output" not in heads.get(head, {}):
      continue
    linear = linear_head_from_tanh(heads.pop(head))
    if linear is None:
      names = (f"{name}.{layer}.{leaf}" for layer in ("dense", "out_proj") for leaf in ("weight", "bias"))
      unmatched = tuple(sorted((*unmatched, *names)))
    else:
      heads[head] = linear
  matched = tuple(name for name in imported.matched if name not in unmatched)
  return imported._replace(params=params, unmatched=unmatched, matched=matched)


def in_class(state: State, layout: str) -> State:
  """Returns tensors under the names that the class of a layout without a head reads.

  FlexBERT, with which ModernBERT was trained, has other prefixes: `model.bert.encoder.`.
  """
  return _plain(state, "model", "ultrabert", "bert", "encoder") if layout in PRE_NORM else state


def _plain(state: State, *prefixes: str) -> State:
  """Renames tensors as in the tables: no prefix of the model, and no TensorFlow names for norms."""
  plain: State = {}
  for name, array in state.items():
    short = name
    for prefix in prefixes:
      short = short.removeprefix(f"{prefix}.")
    short = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", short)
    short = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", short)
    if short in plain:
      raise DataError(
        f"checkpoint: two tensors have the name {short} (one is {name}); expected one; check the file"
      )
    plain[short] = array
  return plain


def _take_blank(state: State, layout: str, fields: Mapping[str, Any]) -> None:
  """Removes tables that our encoder does not have; raises DataError if one is not 0."""
  for name in blank_tables(layout, has_segments=bool(fields["num_segments"])):
    if name not in state:
      raise DataError(f"checkpoint: tensor {name} is missing; expected in {layout}; check its files")
    if np.any(state.pop(name)):
      raise DataError(
        f"checkpoint: tensor {name} is not 0, but this encoder has no such table; a model that was trained "
        "elsewhere after its export cannot be imported"
      )


def _take_distances(state: State, config: EncoderConfig, extra: Mapping[str, np.ndarray]) -> None:
  """Removes the table of distances; raises DataError if it does not match the buckets in `extra`."""
  table, shape = extra.get(RELATIVE_PATH), (config.relative_buckets, config.num_heads)
  if table is None or table.shape != shape:
    what = "missing" if table is None else f"of shape {table.shape}"
    raise DataError(
      f"checkpoint: {RELATIVE_PATH} in extra.safetensors is {what}; expected shape {shape}; put the export's "
      "own extra.safetensors beside the model"
    )
  distances = state.pop(DISTANCES, np.zeros(0))
  expected = (config.num_heads, distance_bins(config.max_length))
  if distances.shape != expected or not np.array_equal(distances, distance_rows(table, config)):
    raise DataError(
      f"checkpoint: tensor {DISTANCES} of shape {distances.shape} does not match {RELATIVE_PATH} in "
      f"extra.safetensors; expected shape {expected}; use both files from the same export"
    )
