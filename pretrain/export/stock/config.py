"""Writes `config.json` of stock transformers classes from our fields, and reads it back.

ModernBERT's file has two spellings: the one of transformers from 5.0 on (`layer_types`, `rope_parameters`),
and the one before it (`global_attn_every_n_layers`, `global_rope_theta`, `local_rope_theta`), which other
readers of such folders know. Both are written, and either is read.

Source: transformers 5.23, configuration_*.py of the classes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from data.errors import DataError
from data.vocabulary import SpecialIds
from pretrain.export.stock.classes import BUCKETS, CLASSES
from pretrain.models.layers import EncoderConfig

# {our field: its name in every Hugging Face config.json, also the official port's}
SIZES = {
  "vocab_size": "vocab_size",
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "mlp_size": "intermediate_size",
}
# Key for values that the stock config has no field for; transformers keeps and ignores it.
SOURCE_KEY = "source_model"
SPATIAL_ROWS = 1024  # the class's default, so that every box is valid; all rows are 0
# Segment rows, all 0, for a model without segments: two, because tokenizers number pairs 0 and 1.
_BLANK_SEGMENTS = 2

_NEVER = {  # field: its supported values
  "is_decoder": (False,),
  "add_cross_attention": (False,),
  "is_encoder_decoder": (False,),
  "quantization_config": (None,),
}
_REFUSED = {"position_embedding_type": ("absolute",)}
RATES = {
  "dropout": "hidden_dropout_prob",
  "attention_dropout": "attention_probs_dropout_prob",
  "init_stddev": "initializer_range",
  "layer_norm_eps": "layer_norm_eps",
}
FULL, SLIDING = "full_attention", "sliding_attention"
_KINDS = (FULL, SLIDING)
_EVERY, _BASES = "global_attn_every_n_layers", ("global_rope_theta", "local_rope_theta")
# Our fields for training that the classes have no field for, with the values of a model from elsewhere.
_OURS = {"dropout_at": ("attention", "all"), "init": ("megatron_cut", "normal")}
# The bases of a class where its config.json has none: of layers that read all keys, and of the others.
_THETAS = {"modernbert": (160_000.0, 10_000.0), "ultrabert": (2_560_000.0, 10_000.0)}
_EUROBERT_THETA = 10_000.0
_PRE_NORM_REFUSED = {  # field: its supported values
  "rope_scaling": (None,),
  "partial_rotary_factor": (None, 1, 1.0),
  "decoder_bias": (True,),
}
_MOST_LAYERS = 1_000  # a false number would fill the memory
_UNUSED_RATES = ("embedding_dropout", "mlp_dropout", "classifier_dropout")


def wrong(field: str, found: object, expected: str, advice: str) -> DataError:
  """Returns the error for a field with an unsupported value."""
  return DataError(f"the checkpoint's config: {field} is {found!r}; expected {expected}; {advice}")


def refuse_others(fields: Mapping[str, Any], allowed: Mapping[str, tuple]) -> None:
  """Raises DataError for a field with another than its allowed values; without a value it has the first."""
  for name, values in allowed.items():
    if fields.get(name, values[0]) not in values:
      expected = ", ".join(map(repr, values))
      raise wrong(name, fields[name], expected, "other values are not supported")


def integer(fields: Mapping[str, Any], name: str, default: int | None = None, lowest: int = 1) -> int:
  """Returns an integer of at least `lowest`."""
  value = fields.get(name, default)
  if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
    raise wrong(name, value, f"an integer of at least {lowest}", "check the checkpoint")
  return value


def number(fields: Mapping[str, Any], name: str, default: float) -> float:
  """Returns a number from 0 to below 1."""
  value = fields.get(name, default)
  if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
    raise wrong(name, value, "a number from 0 to 1", "check the checkpoint")
  return float(value)


def sizes(fields: Mapping[str, Any], names: Mapping[str, str] = SIZES) -> dict[str, int]:
  """Returns the fields of `SIZES`, under `names`; the width is divisible by the number of heads."""
  of_config = {field: integer(fields, names[field]) for field in SIZES}
  if of_config["hidden_size"] % of_config["num_heads"]:
    expected = f"a divisor of {names['hidden_size']} {of_config['hidden_size']}"
    raise wrong(names["num_heads"], of_config["num_heads"], expected, "check the checkpoint")
  return of_config


def _names(layout: str) -> dict[str, str]:
  """Returns {our field: its name in the config.json of a class with post-norm layers}."""
  renamed = CLASSES[layout].renamed
  names = {field: renamed.get(name, name) for field, name in (SIZES | RATES).items()}
  return names | {"activation": renamed.get("hidden_act", "hidden_act")}


def distance_bins(max_length: int) -> int:
  """Returns the `rel_pos_bins` that gives every distance below `max_length` its own row in LayoutLMv3.

  Half of the bins are for keys to the right, and half of each half are single distances.
  """
  return 4 * max_length


def spatial_sizes(hidden_size: int) -> tuple[int, int]:
  """Returns (coordinate_size, shape_size); 4 and 2 times these sum to `hidden_size`, if it is even."""
  coordinate = hidden_size // 6
  return coordinate, hidden_size // 2 - 2 * coordinate


def config_json(
  config: EncoderConfig, *, layout: str, architecture: str, special_ids: SpecialIds
) -> dict[str, Any]:
  """Returns `config.json` of our encoder for a layout that passed `classes.check_layout`.

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
  stock = CLASSES[layout]
  if stock.is_pre_norm:
    return fields | _pre_norm_json(config, layout, special_ids)
  fields |= {name: values[0] for name, values in stock.supported.items() if values[0] is not None}
  fields |= {name: getattr(config, field) for field, name in _names(layout).items()}
  fields["max_position_embeddings"] = config.max_length + stock.first_position(special_ids.pad)
  if config.relative_position == "disentangled":
    fields["position_buckets"] = config.relative_buckets // 2  # for each direction
    fields["max_relative_positions"] = config.relative_max_distance
  if config.position == "rope":
    fields["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
  if not stock.has_segments:
    return fields
  source: dict[str, Any] = {"num_segments": config.num_segments}
  fields["type_vocab_size"] = config.num_segments or _BLANK_SEGMENTS
  if layout == "electra":
    fields["embedding_size"] = config.token_size
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
    source |= {name: getattr(config, name) for name in BUCKETS}
  return fields | {SOURCE_KEY: source}


def _pre_norm_json(config: EncoderConfig, layout: str, special_ids: SpecialIds) -> dict[str, Any]:
  radius = config.window // 2
  kinds = [_KINDS[not config.is_global(layer)] for layer in range(config.num_layers)]
  thetas = (config.rope_theta, config.rope_theta_local)
  rope = [{"rope_type": "default", "rope_theta": theta} for theta in thetas]
  fields: dict[str, Any] = {name: getattr(config, field) for field, name in SIZES.items()} | {
    "max_position_embeddings": config.max_length,
    "cls_token_id": special_ids.cls,
    "sep_token_id": special_ids.sep,
    "tie_word_embeddings": True,
    "attention_bias": config.attention_bias,
    "mlp_bias": config.mlp_bias,
    "attention_dropout": config.attention_dropout,
    "initializer_range": config.init_stddev,
    SOURCE_KEY: {"dropout": config.dropout} | {name: getattr(config, name) for name in _OURS},
  }
  if layout == "modernbert":
    every = _period(kinds)
    return (
      fields
      | ({_EVERY: every} if every else {})
      | {
        "layer_types": kinds,
        "rope_parameters": dict(zip(_KINDS, rope)),
        "global_rope_theta": thetas[0],
        "local_rope_theta": thetas[1],
        "local_attention": 2 * radius,
        "norm_eps": config.layer_norm_eps,
        "layer_norm_eps": config.layer_norm_eps,
        "norm_bias": config.norm_bias,
        "hidden_activation": config.activation,
        "classifier_activation": config.activation,
        "classifier_bias": config.norm_bias,  # of our heads' dense layer
        "decoder_bias": True,
      }
    )
  fields |= {
    "hidden_act": config.activation,
    "rms_norm_eps": config.layer_norm_eps,
    "head_dim": config.head_dim,
    "num_key_value_heads": config.kv_heads,
    "mask_token_id": special_ids.mask,
  }
  if layout == "eurobert":
    return fields | {"rope_parameters": rope[0], "rope_theta": thetas[0]}
  rope_parameters = dict(zip(_KINDS, rope))
  return fields | {"rope_parameters": rope_parameters, "layer_types": kinds, "sliding_window": radius}


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
  if layout not in CLASSES:
    raise wrong("model_type", layout, f"one of {', '.join(CLASSES)}", "other architectures are not supported")
  refuse_others(config, _NEVER)
  stock = CLASSES[layout]
  if stock.is_pre_norm:
    return _pre_norm_fields(config)
  names = _names(layout)
  allowed = {names["activation"]: ("gelu",), **_REFUSED, **stock.supported}
  refuse_others({**stock.absent, **config}, allowed)
  if "ForMaskedLM" in str(config.get("architectures")):
    refuse_others(config, {"tie_word_embeddings": (True,)})
  offset = stock.first_position(integer(config, "pad_token_id", stock.pad_id, lowest=0))
  rates = {"dropout": stock.dropout, "attention_dropout": stock.dropout, "init_stddev": 0.02}
  rates["layer_norm_eps"] = stock.layer_norm_eps
  fields: dict[str, Any] = sizes(config, names)
  fields |= {field: number(config, names[field], rates[field]) for field in RATES}
  default = stock.supported.get("hidden_act", ("gelu",))[0]
  fields |= {"activation": config.get(names["activation"], default), **stock.encoder}
  fields["max_length"] = integer(config, "max_position_embeddings", lowest=1 + offset) - offset
  if fields["position"] == "rope":
    refuse_others(config, {"head_dim": (None, fields["hidden_size"] // fields["num_heads"])})
    block = config.get("rope_parameters") or {}
    fields["rope_theta"] = _theta(block, "rope_parameters", config.get("rope_theta") or stock.rope_theta)
  if fields.get("relative_position") == "disentangled":
    fields |= _disentangled_fields(config, fields)
  if stock.has_projection and (size := integer(config, "embedding_size", 128)) != fields["hidden_size"]:
    fields["embedding_size"] = size
  return fields | (_source_fields(config, layout) if stock.has_segments else {})


def _disentangled_fields(config: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
  """Returns the sizes of DeBERTa's table of relative positions."""
  head_dim = sizes["hidden_size"] // sizes["num_heads"]
  refuse_others(config, {"attention_head_size": (None, head_dim)})
  refuse_others(config, {"embedding_size": (None, sizes["hidden_size"])})
  buckets, farthest = integer(config, "position_buckets", -1, lowest=2), "max_relative_positions"
  distance = sizes["max_length"] if integer(config, farthest, -1, lowest=-1) < 1 else config[farthest]
  distance = integer({farthest: distance}, farthest, lowest=buckets // 2 + 2)
  return {"relative_buckets": 2 * buckets, "relative_max_distance": distance}


def _source_fields(config: Mapping[str, Any], layout: str) -> dict[str, Any]:
  """Returns segments and relative positions of a class with a table of segments."""
  num_rows = integer(config, "type_vocab_size", 2)
  source = config.get(SOURCE_KEY, {"num_segments": num_rows})
  if not isinstance(source, Mapping) or source.get("num_segments") not in (0, num_rows):
    expected = f"an object with num_segments 0 or {num_rows} (type_vocab_size)"
    raise wrong(SOURCE_KEY, source, expected, "check the checkpoint")
  fields = {"num_segments": int(source["num_segments"])}
  if not CLASSES[layout].always_relative:
    return fields
  if SOURCE_KEY not in config or source.get("relative_position") not in ("t5", "official"):
    expected = "an object with relative_position 't5' or 'official'"
    raise wrong(SOURCE_KEY, source, expected, f"only {layout} models that this program wrote are supported")
  buckets = integer(source, "relative_buckets", lowest=4)
  farthest = integer(source, "relative_max_distance", lowest=buckets // 4 + 2)
  relative = {"relative_position": source["relative_position"], "relative_buckets": buckets}
  return fields | relative | {"relative_max_distance": farthest}


def repaired(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Replaces values of `config.json` that the class would misread; returns lines for the user, too.

  FlexBERT's `local_rope_theta` of -1 says that layers with a window have the base of the others; ModernBERT's
  class computes NaN from it. The lines also name dropouts that this encoder has no place for.
  """
  fields, notes = dict(config), []
  if fields.get("model_type") != "modernbert":
    return fields, notes
  nested = fields.get("rope_parameters")
  nested = {**nested} if isinstance(nested, Mapping) else {}
  blocks = {kind: dict(block) for kind, block in nested.items() if isinstance(block, Mapping)}
  local = blocks.get(SLIDING, {}).get("rope_theta", fields.get("local_rope_theta"))
  if local == -1:
    default = fields.get("global_rope_theta", _THETAS["modernbert"][0])
    theta = blocks.get(FULL, {}).get("rope_theta", default)
    notes.append(f"local_rope_theta is -1: layers with a window get the base of the others, {theta}")
    fields["local_rope_theta"] = theta
    if SLIDING in blocks:
      fields["rope_parameters"] = nested | {SLIDING: blocks[SLIDING] | {"rope_theta": theta}}
  if used := [f"{name}={fields[name]}" for name in _UNUSED_RATES if fields.get(name)]:
    notes.append(f"{', '.join(used)}: dropout for training that this encoder does not have; ignored")
  return fields, notes


def _pre_norm_fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """Does `encoder_fields` for a class with pre-norm layers, in either spelling."""
  layout, fields = config["model_type"], sizes(config)
  is_modern = layout == "modernbert"
  refuse_others(config, _PRE_NORM_REFUSED)
  head_dim = fields["hidden_size"] // fields["num_heads"]
  refuse_others(config, {"head_dim": (None, head_dim)})
  if not is_modern and (groups := config.get("num_key_value_heads")) not in (None, fields["num_heads"]):
    fields["num_kv_heads"] = integer(config, "num_key_value_heads")
    if fields["num_heads"] % groups:
      expected = f"a divisor of num_attention_heads {fields['num_heads']}"
      raise wrong("num_key_value_heads", groups, expected, "other values are not supported")
  activation = "hidden_activation" if is_modern else "hidden_act"
  refuse_others(config, {activation: ("gelu", "silu") if is_modern else ("silu", "gelu")})
  if is_modern:
    refuse_others(config, {"tie_word_embeddings": (True,)})
  pad_id = config.get("pad_token_id", CLASSES[layout].pad_id)
  if (
    pad_id is not None
    and not 0 <= integer({"pad_token_id": pad_id}, "pad_token_id", lowest=0) < fields["vocab_size"]
  ):
    raise wrong(
      "pad_token_id", pad_id, f"an id below vocab_size {fields['vocab_size']}", "set the model's own"
    )
  kinds = _kinds(config, layout, fields["num_layers"])
  whole = [layer for layer, kind in enumerate(kinds) if kind == FULL]
  every = _period(kinds)
  thetas = _thetas(config, layout, kinds)
  if is_modern:
    window = integer(config, "local_attention", 128, lowest=0)
  else:
    window = 2 * _radius(config) if layout == "ultrabert" else 0
  epsilon = number(config, "norm_eps" if is_modern else "rms_norm_eps", CLASSES[layout].layer_norm_eps)
  switches = {name: config.get(name, False) for name in ("attention_bias", "mlp_bias", "norm_bias")}
  refuse_others(switches, dict.fromkeys(switches, (False, True)))
  return {
    **fields,
    "max_length": integer(config, "max_position_embeddings", lowest=3),
    "num_segments": 0,
    "relative_position": "none",
    "position": "rope",
    "rope_theta": thetas[0],
    "rope_theta_local": thetas[1],
    "window": max(1, window),  # 1 and 0 are the same: a token reads itself
    "global_every": every or 1,
    "global_layers": () if every else tuple(whole),
    "norm_placement": "pre",
    "norm": "layernorm" if is_modern else "rmsnorm",
    "embedding_norm": is_modern,
    "layer_norm_eps": epsilon,
    "mlp": "gated",
    "activation": config.get(activation, "gelu" if is_modern else "silu"),
    **switches,
    **_training_fields(config, layout),
  }


def _training_fields(config: Mapping[str, Any], layout: str) -> dict[str, Any]:
  """Returns dropout and initial values: ours of an export, else the class's own."""
  rate = number(config, "attention_dropout", 0.0)
  read = {"attention_dropout": rate, "init_stddev": number(config, "initializer_range", 0.02)}
  source = config.get(SOURCE_KEY, {})
  if not isinstance(source, Mapping):
    raise wrong(SOURCE_KEY, source, "an object", "check the checkpoint")
  refuse_others(source, _OURS)
  # ModernBERT's class has the rate of attention's probabilities on its output, too.
  read["dropout"] = number(source, "dropout", rate if layout == "modernbert" else 0.0)
  for name, values in _OURS.items():
    read[name] = source.get(name, values[name == "init" and layout != "modernbert"])
  return read


def _period(kinds: Sequence[str]) -> int | None:
  """Returns n if layers 0, n, 2n, ... and no others read keys at any distance; else None."""
  whole = [layer for layer, kind in enumerate(kinds) if kind == FULL]
  period = next(filter(None, whole), len(kinds))
  return period if whole == list(range(0, len(kinds), period)) else None


def _kinds(config: Mapping[str, Any], layout: str, num_layers: int) -> list[str]:
  """Returns the kind of every layer; there is at least one that reads keys at any distance."""
  name: str = "layer_types"
  kinds: Any = config.get(name)
  if num_layers > _MOST_LAYERS:
    raise wrong("num_hidden_layers", num_layers, f"at most {_MOST_LAYERS}", "check the checkpoint")
  if layout == "eurobert":
    kinds = [FULL] * num_layers
  elif kinds is None and layout == "modernbert":
    every = integer(config, _EVERY, 3)
    kinds = [_KINDS[layer % every > 0] for layer in range(num_layers)]
  elif kinds is None and "attention_windows" in config:
    name = "attention_windows"
    kinds = [_KINDS[bool(window)] for window in config[name]] if isinstance(config[name], list) else None
  elif kinds is None:
    kinds = [_KINDS[(layer + 1) % 3 > 0] for layer in range(num_layers)]
  is_list = isinstance(kinds, list) and len(kinds) == num_layers
  if not is_list or FULL not in kinds or any(kind not in _KINDS for kind in kinds):
    expected = f"{num_layers} of {FULL} and {SLIDING}, one at least {FULL}"
    raise wrong(name, config.get(name), expected, "check the checkpoint")
  return kinds


def _radius(config: Mapping[str, Any]) -> int:
  windows = config.get("attention_windows")
  if isinstance(windows, list):
    config = {"sliding_window": next(filter(None, windows), config.get("sliding_window", 128))}
  return integer(config, "sliding_window", 128, lowest=0)


def _thetas(config: Mapping[str, Any], layout: str, kinds: Sequence[str]) -> tuple[float, float]:
  """Returns the bases of rotary frequencies: of layers that read all keys, and of the others."""
  parameters = config.get("rope_parameters")
  if parameters is not None and not isinstance(parameters, Mapping):
    raise wrong("rope_parameters", parameters, "an object", "check the checkpoint")
  if layout == "eurobert":
    theta = _theta(parameters or {}, "rope_parameters", config.get("rope_theta") or _EUROBERT_THETA)
    return theta, theta
  defaults = dict(zip(_KINDS, _THETAS[layout]))
  if layout == "modernbert":
    names = dict(zip(_KINDS, _BASES))
    defaults = {kind: config.get(names[kind], theta) for kind, theta in defaults.items()}
  elif parameters is None and isinstance(config.get("rope_theta"), list):
    defaults |= dict(zip(kinds, config["rope_theta"]))
  blocks = parameters or {}
  if unknown := [kind for kind in blocks if kind not in _KINDS]:
    raise wrong("rope_parameters", unknown, " and ".join(_KINDS), "check the checkpoint")
  full, local = (_theta(blocks.get(kind) or {}, f"rope_parameters.{kind}", defaults[kind]) for kind in _KINDS)
  return full, local


def _theta(block: object, where: str, default: object) -> float:
  if not isinstance(block, Mapping) or block.get("rope_type", "default") != "default":
    raise wrong(where, block, "rope_type 'default'", "scaled rotary positions are not supported")
  refuse_others(block, {"partial_rotary_factor": (None, 1, 1.0)})
  theta = block.get("rope_theta", default)
  if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < math.inf:
    raise wrong(f"{where}.rope_theta", theta, "a number above 0", "give the base of its training")
  return float(theta)
