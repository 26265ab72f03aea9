"""Converts our parameters to a stock model of transformers and back, without PyTorch."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError
from data.vocabulary import SpecialIds
from pretrain.export import task_fields
from pretrain.export.stock import heads as head_forms
from pretrain.export.stock import names
from pretrain.export.stock.classes import CLASSES
from pretrain.export.stock.config import (
  SPATIAL_ROWS,
  config_json,
  distance_bins,
  encoder_fields,
  spatial_sizes,
)
from pretrain.export.tensor_rows import Imported, Part, State, Tie, extra_of, put, read, write
from pretrain.mesh import trees
from pretrain.models.layers import EncoderConfig


class StockModel(NamedTuple):
  """The contents of a folder for `from_pretrained`."""

  architecture: str  # name of the class, e.g. 'MPNetForMaskedLM'
  state: State  # {name: float32 array}, for model.safetensors
  config: dict[str, Any]  # for config.json
  head: str  # name of our head that the class computes, e.g. 'mlm'; '': none
  extra: dict[str, np.ndarray]  # {our path: array} of parameters without a slot in the class


def to_stock(
  params: dict,
  config: EncoderConfig,
  *,
  layout: str,
  special_ids: SpecialIds,
  task: Mapping[str, Any],
) -> StockModel:
  """Converts our parameters to a stock model that computes the same, for rows padded on the right.

  The class has a slot for the first of these heads: classification, tagging, question answering, RTD
  (ELECTRA), masked LM. Other heads and the generator go to `extra`; DeBERTa's files have its own RTD head
  beside any other. BertModel and MPNetModel have a pooler,
  which is written as the identity (`heads.blank_pooler`) so that `AutoModel` reports no missing tensor;
  `pooler_output` is not trained. Use a model with segments without token_type_ids, or with 0. A token head in
  LayoutLMv3 is exact in float32 and bfloat16, not in float16.

  `params` are float32; only the encoder is required. `task` describes a fine-tuned classification head
  (`task_fields`), or is {}. Call `classes.check_layout` first. ConfigError: more token labels than LayoutLMv3
  supports, or a fine-tuned head without a slot in a class with pre-norm layers.
  """
  if CLASSES[layout].is_pre_norm:
    return _pre_norm(params, config, layout, special_ids, task)
  heads = params.get("heads", {})
  ending, head, head_part = _head(layout, heads)
  architecture = CLASSES[layout].name + ending
  fields = config_json(config, layout=layout, architecture=architecture, special_ids=special_ids)
  fields |= task_fields.label_fields(params, task)
  tree = {**params, "heads": _in_slots(params, layout, ending, head_part)}
  parts = names.encoder_parts(layout, config, offset=CLASSES[layout].first_position(special_ids.pad))
  beside = names.TENSORS[layout].beside
  fits = beside is not None and beside.held <= trees.by_path(tree).keys()
  head_parts = tuple(part for part in (head_part, beside if fits else None) if part is not None)
  state = write(tree, parts) | _made_up(params, config, layout)
  head_state = write(tree, head_parts)
  # BERT's classifier uses the pooler as its dense layer.
  of_encoder = () if CLASSES[layout].pools_beside else ("pooler.",)
  state |= {name: head_state.pop(name) for name in list(head_state) if name.startswith(of_encoder)}
  if head_parts:
    state = {f"{CLASSES[layout].prefix}.{name}": array for name, array in state.items()} | head_state
  return StockModel(architecture, _contiguous(state), fields, head, extra_of(tree, (*parts, *head_parts)))


def _contiguous(state: State) -> State:
  return {name: np.ascontiguousarray(array, np.float32) for name, array in state.items()}


def _pre_norm(
  params: dict, config: EncoderConfig, layout: str, special_ids: SpecialIds, task: Mapping[str, Any]
) -> StockModel:
  """Does `to_stock` for a class with pre-norm layers."""
  slot = head_forms.slot(params, config, layout=layout)
  architecture, tree = CLASSES[layout].name + slot.ending, {**params, "heads": slot.heads}
  fields = config_json(config, layout=layout, architecture=architecture, special_ids=special_ids)
  fields |= {task_fields.POOLING: task_fields.pooling(task)} if layout != "eurobert" else {}
  fields |= task_fields.label_fields(params, task) | slot.fields
  parts, head_parts = names.pre_norm_parts(layout, config), (slot.part,) if slot.part else ()
  state = names.shifted(write(tree, parts), layout, config.num_layers, to_ours=False)
  if slot.part:
    state = {f"{CLASSES[layout].prefix}.{name}": array for name, array in state.items()} | write(
      tree, head_parts
    )
  return StockModel(
    architecture, _contiguous(state), fields, slot.head, extra_of(tree, (*parts, *head_parts))
  )


def _head(layout: str, heads: Mapping[str, Any]) -> tuple[str, str, Part | None]:
  """Returns the ending of the class name, the name of our head in it, and its table."""
  for ending, part in names.TENSORS[layout].heads.items():
    name = (part.path + part.rows[0].paths[0]).split("/")[1]
    if name in heads:
      is_wide = layout == "layoutlmv3" and name == "tagging" and len(heads[name]["bias"]) >= names.MANY_LABELS
      return ending, name, names.WIDE_TAGGING if is_wide else part
  return "Model", "", None


def _in_slots(params: dict, layout: str, ending: str, head_part: Part | None) -> dict:
  """Returns all heads, with the exported one in the form that the class has."""
  heads = dict(params.get("heads", {}))
  if ending == "ForPreTraining":
    heads["rtd"] = head_forms.binary_head_as_dense(heads["rtd"])
  name = {"ForQuestionAnswering": "question_answering", "ForTokenClassification": "tagging"}.get(ending, "")
  if layout == "layoutlmv3" and (name == "question_answering" or head_part is names.WIDE_TAGGING):
    norm = {name: array[-1] for name, array in params["encoder"]["trunk"]["layers"]["mlp_norm"].items()}
    heads[name] = head_forms.linear_head_as_tanh(heads[name], norm)
  return heads


def _made_up(params: dict, config: EncoderConfig, layout: str) -> State:
  """Returns the tensors that the Hugging Face class needs and our model lacks or has in another form."""
  state = head_forms.blank_pooler(config.hidden_size) if CLASSES[layout].has_pooler else {}
  for name in names.blank_tables(layout, has_segments=bool(config.num_segments)):
    state[name] = np.zeros((2, config.token_size), np.float32)
  if layout == "layoutlmv3":
    coordinate_size, shape_size = spatial_sizes(config.hidden_size)
    for name, size in zip(names.SPATIAL, (coordinate_size, coordinate_size, shape_size, shape_size)):
      state[name] = np.zeros((SPATIAL_ROWS, size), np.float32)
    table = params["encoder"]["trunk"]["relative_position"]["embedding"]
    state[names.DISTANCES] = head_forms.distance_rows(table, config)
  return state


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
  if CLASSES[layout].is_pre_norm:
    return _with_extra(_from_pre_norm(state, config_json, EncoderConfig(**fields)), extra)
  state = _plain(state, CLASSES[layout].prefix)
  given = {*state}
  _take_blank(state, layout, fields)
  if layout == "layoutlmv3":
    _take_distances(state, EncoderConfig(**fields), extra)
  offset = config_json["max_position_embeddings"] - fields["max_length"]
  config = EncoderConfig(**fields)
  named = str(config_json.get("architectures"))
  heads = {
    name: part
    for name, part in names.TENSORS[layout].heads.items()
    if not name.endswith("Classification") or name in named
  }
  if beside := names.TENSORS[layout].beside:
    heads["beside"] = beside
  if "ForTokenClassification" in heads and "classifier.dense.weight" in state:
    heads["ForTokenClassification"] = names.WIDE_TAGGING
  imported = read(
    state,
    (*names.encoder_parts(layout, config, offset=offset), *heads.values()),
    num_heads=fields["num_heads"],
    ties=names.ties(layout),
    sizes={
      "D": fields["hidden_size"],
      "E": config.token_size,
      "V": fields["vocab_size"],
      "F": fields["mlp_size"],
      "P": fields["max_length"] + offset,
      "R": fields.get("relative_buckets", 0),
      "T": fields["num_segments"],
    },
  )
  taken = given - {*state}  # tables without effect in our encoder
  return _with_extra(_own_heads(imported._replace(matched=tuple(sorted({*imported.matched, *taken})))), extra)


def _with_extra(imported: Imported, extra: Mapping[str, np.ndarray]) -> Imported:
  for path, array in extra.items():
    put(imported.params, path, array)
  return imported


def _from_pre_norm(state: State, config_json: Mapping[str, Any], config: EncoderConfig) -> Imported:
  """Does `from_stock` for a class with pre-norm layers."""
  layout = config_json["model_type"]
  state = in_class(state, layout)
  named, heads = str(config_json.get("architectures")), names.pre_norm_heads(layout, config)
  kind = next(
    (ending for ending in heads if ending in named), "ForMaskedLM" if "decoder.bias" in state else ""
  )
  if layout == "eurobert" and kind == "ForMaskedLM":  # a tied table is stored once
    state.setdefault("lm_head.weight", state.get("embed_tokens.weight", np.empty(0)))
  imported = read(
    names.shifted(state, layout, config.num_layers, to_ours=True),
    (*names.pre_norm_parts(layout, config), *((heads[kind],) if kind in heads else ())),
    num_heads=config.num_heads,
    ties=(Tie("decoder.weight", f"{names.PRE_NORM[layout].tokens}.weight"),),
    sizes={
      "D": config.hidden_size,
      "V": config.vocab_size,
      "F": config.mlp_size,
      "K": config.kv_heads * config.head_dim,
    },
  )
  own = head_forms.own_heads(imported.params, config, config_json)
  unmatched, matched = (
    tuple(sorted(names.shifted(dict.fromkeys(ours, np.empty(0)), layout, config.num_layers, to_ours=False)))
    for ours in (imported.unmatched, imported.matched)
  )
  return Imported(imported.params | ({"heads": own} if own else {}), unmatched, matched)


def _own_heads(imported: Imported) -> Imported:
  """Converts heads to our form; an unsupported token head of LayoutLMv3 becomes unmatched."""
  params, unmatched = imported.params, imported.unmatched
  heads = params.get("heads", {})
  if "rtd" in heads:
    heads["rtd"] = head_forms.binary_head_from_dense(heads["rtd"])
  for head, name in (("question_answering", "qa_outputs"), ("tagging", "classifier")):
    if "output" not in heads.get(head, {}):
      continue
    linear = head_forms.linear_head_from_tanh(heads.pop(head))
    if linear is None:
      theirs = (f"{name}.{layer}.{leaf}" for layer in ("dense", "out_proj") for leaf in ("weight", "bias"))
      unmatched = tuple(sorted((*unmatched, *theirs)))
    else:
      heads[head] = linear
  matched = tuple(name for name in imported.matched if name not in unmatched)
  return imported._replace(params=params, unmatched=unmatched, matched=matched)


def in_class(state: State, layout: str) -> State:
  """Returns tensors under the names that the class of a layout without a head reads.

  FlexBERT, with which ModernBERT was trained, has other prefixes: `model.bert.encoder.`.
  """
  return _plain(state, "model", "ultrabert", "bert", "encoder") if CLASSES[layout].is_pre_norm else state


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
  for name in names.blank_tables(layout, has_segments=bool(fields["num_segments"])):
    if name not in state:
      raise DataError(f"checkpoint: tensor {name} is missing; expected in {layout}; check its files")
    if np.any(state.pop(name)):
      raise DataError(
        f"checkpoint: tensor {name} is not 0, but this encoder has no such table; a model that was trained "
        "elsewhere after its export cannot be imported"
      )


def _take_distances(state: State, config: EncoderConfig, extra: Mapping[str, np.ndarray]) -> None:
  """Removes the table of distances; raises DataError if it does not match the buckets in `extra`."""
  table, shape = extra.get(names.RELATIVE_PATH), (config.relative_buckets, config.num_heads)
  if table is None or table.shape != shape:
    what = "missing" if table is None else f"of shape {table.shape}"
    raise DataError(
      f"checkpoint: {names.RELATIVE_PATH} in extra.safetensors is {what}; expected shape {shape}; put the "
      "export's own extra.safetensors beside the model"
    )
  distances = state.pop(names.DISTANCES, np.zeros(0))
  expected = (config.num_heads, distance_bins(config.max_length))
  if distances.shape != expected or not np.array_equal(distances, head_forms.distance_rows(table, config)):
    raise DataError(
      f"checkpoint: tensor {names.DISTANCES} of shape {distances.shape} does not match {names.RELATIVE_PATH} "
      f"in extra.safetensors; expected shape {expected}; use both files from the same export"
    )
