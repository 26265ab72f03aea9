"""Writes `config.json` of stock transformers classes from our fields, and reads it back.

`pre_norm_config` does it for classes with pre-norm layers.
Source: transformers 5.23, configuration_{bert,electra,mpnet,layoutlmv3}.py.
"""

from collections.abc import Mapping
from typing import Any

from data.vocabulary import SpecialIds
from pretrain.export.folders import PRE_NORM, STOCK
from pretrain.export.stock import pre_norm_config
from pretrain.export.stock.forms import distance_bins, spatial_sizes
from pretrain.export.stock.json_values import SIZES, SOURCE_KEY, integer, number, refuse_others, sizes, wrong
from pretrain.models.layers import EncoderConfig

MPNET_PAD = 1  # fixed in MPNet's code
MPNET_BUCKETS = {"relative_position": "t5", "relative_buckets": 32, "relative_max_distance": 128}
SPATIAL_ROWS = 1024  # the class's default, so that every box is valid; all rows are 0
# Segment rows, all 0, for a model without segments: two, because tokenizers number pairs 0 and 1.
_BLANK_SEGMENTS = 2

_NEVER = {  # field: its supported values
  "is_decoder": (False,),
  "add_cross_attention": (False,),
  "is_encoder_decoder": (False,),
  "quantization_config": (None,),
}
_REFUSED = {"hidden_act": ("gelu",), "position_embedding_type": ("absolute",)}
RATES = {
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "init_stddev": "initializer_range",
  "layer_norm_eps": "layer_norm_eps",
}
_DEFAULT_RATES = {"dropout": 0.1, "attention_dropout": 0.1, "init_stddev": 0.02}


def first_position(layout: str, pad_id: int) -> int:
  """Returns the first token's row in the position table; RoBERTa's descendants count from padding id + 1."""
  return {"mpnet": MPNET_PAD + 1, "layoutlmv3": pad_id + 1}.get(layout, 0)


def size_fields(config: EncoderConfig) -> dict[str, Any]:
  """Returns sizes, rates and the activation under their names in every Hugging Face config.json."""
  return {name: getattr(config, field) for field, name in (SIZES | RATES).items()} | {"hidden_act": "gelu"}


def config_json(
  config: EncoderConfig, *, layout: str, architecture: str, special_ids: SpecialIds
) -> dict[str, Any]:
  """Returns `config.json` of our encoder for a layout that passed `choose.check_layout`.

  `architecture` is a class name, such as 'MPNetForMaskedLM'.
  """
  fields: dict[str, Any] = {
    "architectures": [architecture],
    "model_type": layout,
    "dtype": "float32",
    "pad_token_id": special_ids.pad,
    "bos_token_id": special_ids.cls,
    "eos_token_id": special_ids.sep,
  }
  if layout in PRE_NORM:
    return fields | pre_norm_config.config_json(config, layout=layout, special_ids=special_ids)
  fields |= size_fields(config) | {
    "max_position_embeddings": config.max_length + first_position(layout, special_ids.pad)
  }
  source: dict[str, Any] = {"num_segments": config.num_segments}
  if layout == "mpnet":
    return fields | {"relative_attention_num_buckets": MPNET_BUCKETS["relative_buckets"]}
  fields["type_vocab_size"] = config.num_segments or _BLANK_SEGMENTS
  if layout == "electra":
    fields["embedding_size"] = config.hidden_size
  if layout == "layoutlmv3":
    coordinate_size, shape_size = spatial_sizes(config.hidden_size)
    bins = distance_bins(config.max_length)
    fields |= {
      "has_relative_attention_bias": True,
      "has_spatial_attention_bias": False,
      "visual_embed": False,
      "text_embed": True,
      "coordinate_size": coordinate_size,
      "shape_size": shape_size,
      "max_2d_position_embeddings": SPATIAL_ROWS,
      "rel_pos_bins": bins,
      "max_rel_pos": bins,  # the class would share rows from this distance on
    }
    source |= {name: getattr(config, name) for name in MPNET_BUCKETS}
  return fields | {SOURCE_KEY: source}


def encoder_fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads our fields of `model` from a stock `config.json`.

  BERT and ELECTRA keep their segment table, but our encoder adds row 0 to every token. So its outputs for
  pairs differ from a class that gets token_type_ids of 1. LayoutLMv3 is read only as this program writes it.
  Without relative positions relative_buckets and relative_max_distance are left out. DataError: an
  unsupported architecture or value, or an impossible size.
  """
  if not isinstance(config, Mapping):
    raise wrong("the whole", type(config).__name__, "an object", "check the checkpoint")
  layout = config.get("model_type")
  if layout not in STOCK:
    raise wrong("model_type", layout, f"one of {', '.join(STOCK)}", "other architectures are not supported")
  refuse_others(config, _NEVER)
  if layout in PRE_NORM:
    return pre_norm_config.encoder_fields(config)
  refuse_others(config, _REFUSED)
  pad_id = integer(config, "pad_token_id", {"mpnet": 1, "layoutlmv3": 1}.get(layout, 0), lowest=0)
  offset = first_position(layout, pad_id)
  rates = _DEFAULT_RATES | {"layer_norm_eps": 1e-5 if layout == "layoutlmv3" else 1e-12}
  fields: dict[str, Any] = sizes(config)
  fields |= {field: number(config, name, rates[field]) for field, name in RATES.items()}
  fields["max_length"] = integer(config, "max_position_embeddings", lowest=1 + offset) - offset
  if layout == "electra" and config.get("embedding_size", 128) != fields["hidden_size"]:
    raise wrong(
      "embedding_size",
      config.get("embedding_size", 128),
      f"hidden_size, {fields['hidden_size']}",
      "this encoder has no projection between embeddings and layers",
    )
  return fields | _source_fields(config, layout)


def _source_fields(config: Mapping[str, Any], layout: str) -> dict[str, Any]:
  if layout == "mpnet":
    if config.get("relative_attention_num_buckets", 32) != MPNET_BUCKETS["relative_buckets"]:
      buckets = config["relative_attention_num_buckets"]
      raise wrong("relative_attention_num_buckets", buckets, "32", "MPNet supports no other number")
    return {"num_segments": 0, **MPNET_BUCKETS}
  num_rows = integer(config, "type_vocab_size", 2)
  source = config.get(SOURCE_KEY, {"num_segments": num_rows})
  if not isinstance(source, Mapping) or source.get("num_segments") not in (0, num_rows):
    expected = f"an object with num_segments 0 or {num_rows} (type_vocab_size)"
    raise wrong(SOURCE_KEY, source, expected, "check the checkpoint")
  segments = {"num_segments": int(source["num_segments"])}
  if layout != "layoutlmv3":
    return segments | {"relative_position": "none"}
  if SOURCE_KEY not in config or source.get("relative_position") not in ("t5", "official"):
    expected = "an object with relative_position 't5' or 'official'"
    raise wrong(SOURCE_KEY, source, expected, "only layoutlmv3 models that this program wrote are supported")
  buckets = integer(source, "relative_buckets", lowest=4)
  farthest = integer(source, "relative_max_distance", lowest=buckets // 4 + 2)
  return segments | {
    "relative_position": source["relative_position"],
    "relative_buckets": buckets,
    "relative_max_distance": farthest,
  }
