"""An encoder of ours as a stock transformers model: its class, tensors and `config.json`, without PyTorch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data.vocabulary import SpecialIds
from pretrain.export import task_fields
from pretrain.export.stock import choose
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
from pretrain.export.tensor_rows import Part, State, write
from pretrain.mesh import trees
from pretrain.models.config import EncoderConfig

_CLASSES = {"mpnet": "MPNet", "layoutlmv3": "LayoutLMv3", "bert": "Bert", "electra": "Electra"}


class StockModel(NamedTuple):
  """What goes into a folder for `from_pretrained`."""

  architecture: str  # name of the class, e.g. 'MPNetForMaskedLM'
  state: State  # {name: float32 array}, for model.safetensors
  config: dict[str, Any]  # for config.json
  head: str  # name of our head that the class computes, e.g. 'mlm'; '': none
  extra: dict[str, np.ndarray]  # {our path: array} of all that the class has no slot for


def to_stock(
  params: dict,
  config: EncoderConfig,
  *,
  layout: str,
  special_ids: SpecialIds,
  task: Mapping[str, Any],
) -> StockModel:
  """A stock model that computes what ours does, for rows padded on the right.

  The class is the one with a slot for the first of: classification, tagging, question answering, RTD
  (ELECTRA), masked LM; other heads and the generator are in `extra`. BertModel and MPNetModel want a
  pooler, which nothing here trains: it is written as the identity (`forms.blank_pooler`), so that `AutoModel`
  misses nothing; no loss has touched `pooler_output`. A model with segments must be used without
  token_type_ids, or with 0. A head on tokens in LayoutLMv3 is exact in float32 and bfloat16, not in float16.

  Of the parameters, float32 as saved, only the encoder must be there; `task` is what a fine-tuned checkpoint
  says of its classification head (`task_fields`), or {}. ConfigError: the layout cannot hold it exactly, or
  labels that do not fit the head.
  """
  heads = params.get("heads", {})
  pad_id, activation = special_ids.pad, task_fields.activation(task)
  choose.check_layout(layout, config, pad_id=pad_id, heads=set(heads), activation=activation)
  ending, head, head_part = _head(layout, heads)
  architecture = _CLASSES[layout] + ending
  fields = config_json(config, layout=layout, architecture=architecture, special_ids=special_ids)
  fields |= task_fields.label_fields(params, task)
  tree = {**params, "heads": _in_slots(params, layout, ending, head_part)}
  parts = encoder_parts(layout, offset=first_position(layout, pad_id), has_segments=bool(config.num_segments))
  head_parts = () if head_part is None else (head_part,)
  state = write(tree, parts, "hugging_face") | _made_up(params, config, layout)
  head_state = write(tree, head_parts, "hugging_face")
  # A classifier of BERT has the pooler for its dense layer.
  state |= {name: head_state.pop(name) for name in list(head_state) if name.startswith("pooler.")}
  if head_part is not None:
    state = {f"{layout}.{name}": array for name, array in state.items()} | head_state
  held = {part.path + path for part in (*parts, *head_parts) for row in part.rows for path in row.paths}
  extra = {path: _plain(array) for path, array in trees.by_path(tree).items() if path not in held}
  state = {name: _plain(array) for name, array in state.items()}
  return StockModel(architecture, state, fields, head, extra)


def _head(layout: str, heads: Mapping[str, Any]) -> tuple[str, str, Part | None]:
  """The end of the class's name, the name of our head in it, and its table."""
  for ending, part in HEADS[layout].items():
    name = (part.path + part.rows[0].paths[0]).split("/")[1]
    if name in heads:
      is_wide = layout == "layoutlmv3" and name == "tagging" and len(heads[name]["bias"]) >= MANY_LABELS
      return ending, name, WIDE_TAGGING if is_wide else part
  return "Model", "", None


def _in_slots(params: dict, layout: str, ending: str, head_part: Part | None) -> dict:
  """The heads, the one that the class has a slot for in the form of that slot."""
  heads = dict(params.get("heads", {}))
  if ending == "ForPreTraining":
    heads["rtd"] = binary_head_as_dense(heads["rtd"])
  name = {"ForQuestionAnswering": "question_answering", "ForTokenClassification": "tagging"}.get(ending, "")
  if layout == "layoutlmv3" and (name == "question_answering" or head_part is WIDE_TAGGING):
    norm = {name: array[-1] for name, array in params["encoder"]["trunk"]["layers"]["mlp_norm"].items()}
    heads[name] = linear_head_as_tanh(heads[name], norm)
  return heads


def _made_up(params: dict, config: EncoderConfig, layout: str) -> State:
  """Tensors of the class that ours has not, or has in another form."""
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


def _plain(array: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(array, np.float32)
