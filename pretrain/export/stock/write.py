"""Converts our encoder to a stock transformers model, without PyTorch: class name, tensors, `config.json`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data.vocabulary import SpecialIds
from pretrain.export import task_fields
from pretrain.export.folders import PRE_NORM
from pretrain.export.stock import pre_norm, pre_norm_heads
from pretrain.export.stock.config import SPATIAL_ROWS, config_json, first_position
from pretrain.export.stock.forms import (
  binary_head_as_dense,
  blank_pooler,
  distance_rows,
  linear_head_as_tanh,
  spatial_sizes,
)
from pretrain.export.stock.tables import (
  DISTANCES,
  HEADS,
  MANY_LABELS,
  SPATIAL,
  WIDE_TAGGING,
  blank_tables,
  encoder_parts,
)
from pretrain.export.tensor_rows import Part, State, extra_of, write
from pretrain.models.layers import EncoderConfig

_CLASSES = {"mpnet": "MPNet", "layoutlmv3": "LayoutLMv3", "bert": "Bert", "electra": "Electra"} | {
  "modernbert": "ModernBert",
  "ultrabert": "Ultrabert",
  "eurobert": "EuroBert",
}


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
  (ELECTRA), masked LM. Other heads and the generator go to `extra`. BertModel and MPNetModel have a pooler,
  which is written as the identity (`forms.blank_pooler`) so that `AutoModel` reports no missing tensor;
  `pooler_output` is not trained. Use a model with segments without token_type_ids, or with 0. A token head in
  LayoutLMv3 is exact in float32 and bfloat16, not in float16.

  `params` are float32; only the encoder is required. `task` describes a fine-tuned classification head
  (`task_fields`), or is {}. Call `choose.check_layout` first. ConfigError: more token labels than LayoutLMv3
  supports, or a fine-tuned head without a slot in a class with pre-norm layers.
  """
  if layout in PRE_NORM:
    return _pre_norm(params, config, layout, special_ids, task)
  heads = params.get("heads", {})
  ending, head, head_part = _head(layout, heads)
  architecture = _CLASSES[layout] + ending
  fields = config_json(config, layout=layout, architecture=architecture, special_ids=special_ids)
  fields |= task_fields.label_fields(params, task)
  tree = {**params, "heads": _in_slots(params, layout, ending, head_part)}
  parts = encoder_parts(
    layout, offset=first_position(layout, special_ids.pad), has_segments=bool(config.num_segments)
  )
  head_parts = () if head_part is None else (head_part,)
  state = write(tree, parts) | _made_up(params, config, layout)
  head_state = write(tree, head_parts)
  # BERT's classifier uses the pooler as its dense layer.
  state |= {name: head_state.pop(name) for name in list(head_state) if name.startswith("pooler.")}
  if head_part is not None:
    state = {f"{layout}.{name}": array for name, array in state.items()} | head_state
  return StockModel(architecture, _contiguous(state), fields, head, extra_of(tree, (*parts, *head_parts)))


def _contiguous(state: State) -> State:
  return {name: np.ascontiguousarray(array, np.float32) for name, array in state.items()}


def _pre_norm(
  params: dict, config: EncoderConfig, layout: str, special_ids: SpecialIds, task: Mapping[str, Any]
) -> StockModel:
  """Does `to_stock` for a class with pre-norm layers."""
  slot = pre_norm_heads.slot(params, config, layout=layout)
  architecture, tree = _CLASSES[layout] + slot.ending, {**params, "heads": slot.heads}
  fields = config_json(config, layout=layout, architecture=architecture, special_ids=special_ids)
  fields |= {task_fields.POOLING: task_fields.pooling(task)} if layout != "eurobert" else {}
  fields |= task_fields.label_fields(params, task) | slot.fields
  parts, head_parts = pre_norm.encoder_parts(layout, config), (slot.part,) if slot.part else ()
  state = pre_norm.shifted(write(tree, parts), layout, config.num_layers, to_ours=False)
  if slot.part:
    prefix = "ultrabert" if layout == "ultrabert" else "model"
    state = {f"{prefix}.{name}": array for name, array in state.items()} | write(tree, head_parts)
  return StockModel(
    architecture, _contiguous(state), fields, slot.head, extra_of(tree, (*parts, *head_parts))
  )


def _head(layout: str, heads: Mapping[str, Any]) -> tuple[str, str, Part | None]:
  """Returns the ending of the class name, the name of our head in it, and its table."""
  for ending, part in HEADS[layout].items():
    name = (part.path + part.rows[0].paths[0]).split("/")[1]
    if name in heads:
      is_wide = layout == "layoutlmv3" and name == "tagging" and len(heads[name]["bias"]) >= MANY_LABELS
      return ending, name, WIDE_TAGGING if is_wide else part
  return "Model", "", None


def _in_slots(params: dict, layout: str, ending: str, head_part: Part | None) -> dict:
  """Returns all heads, with the exported one in the form that the class has."""
  heads = dict(params.get("heads", {}))
  if ending == "ForPreTraining":
    heads["rtd"] = binary_head_as_dense(heads["rtd"])
  name = {"ForQuestionAnswering": "question_answering", "ForTokenClassification": "tagging"}.get(ending, "")
  if layout == "layoutlmv3" and (name == "question_answering" or head_part is WIDE_TAGGING):
    norm = {name: array[-1] for name, array in params["encoder"]["trunk"]["layers"]["mlp_norm"].items()}
    heads[name] = linear_head_as_tanh(heads[name], norm)
  return heads


def _made_up(params: dict, config: EncoderConfig, layout: str) -> State:
  """Returns the tensors that the Hugging Face class needs and our model lacks or has in another form."""
  state = blank_pooler(config.hidden_size) if layout in ("bert", "mpnet") else {}
  for name in blank_tables(layout, has_segments=bool(config.num_segments)):
    state[name] = np.zeros((2, config.hidden_size), np.float32)
  if layout == "layoutlmv3":
    coordinate_size, shape_size = spatial_sizes(config.hidden_size)
    for name, size in zip(SPATIAL, (coordinate_size, coordinate_size, shape_size, shape_size)):
      state[name] = np.zeros((SPATIAL_ROWS, size), np.float32)
    table = params["encoder"]["trunk"]["relative_position"]["embedding"]
    state[DISTANCES] = distance_rows(table, config)
  return state
