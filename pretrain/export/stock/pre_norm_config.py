"""Writes `config.json` of stock classes with pre-norm layers from our fields, and reads it back.

ModernBERT's file has two spellings: the one of transformers from 5.0 on (`layer_types`, `rope_parameters`),
and the one before it (`global_attn_every_n_layers`, `global_rope_theta`, `local_rope_theta`), which other
readers of such folders know. Both are written, and either is read.

Source: transformers 5.23, configuration_{modernbert,ultrabert,eurobert}.py.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from data.vocabulary import SpecialIds
from pretrain.export.stock.json_values import SIZES, SOURCE_KEY, integer, number, refuse_others, sizes, wrong
from pretrain.models.layers import EncoderConfig

FULL, SLIDING = "full_attention", "sliding_attention"
_KINDS = (FULL, SLIDING)
_EVERY, _BASES = "global_attn_every_n_layers", ("global_rope_theta", "local_rope_theta")
NEW_SPELLING = ("layer_types", "rope_parameters")
OLD_SPELLING = (_EVERY, *_BASES)
# Our fields for training that the classes have no field for, with the values of a model from elsewhere.
_OURS = {"dropout_at": ("attention", "all"), "init": ("megatron_cut", "normal")}
# The bases of a class where its config.json has none: of layers that read all keys, and of the others.
_THETAS = {"modernbert": (160_000.0, 10_000.0), "ultrabert": (2_560_000.0, 10_000.0)}
_EUROBERT_THETA = 10_000.0
_REFUSED = {  # field: its supported values
  "rope_scaling": (None,),
  "partial_rotary_factor": (None, 1, 1.0),
  "decoder_bias": (True,),
}
_MOST_LAYERS = 1_000  # a false number would fill the memory
_UNUSED_RATES = ("embedding_dropout", "mlp_dropout", "classifier_dropout")


def config_json(config: EncoderConfig, *, layout: str, special_ids: SpecialIds) -> dict[str, Any]:
  """Returns the fields of `config.json` that describe an encoder which passed `choose.check_layout`."""
  radius, heads = config.window // 2, config.num_heads
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
    "num_key_value_heads": heads,
    "mask_token_id": special_ids.mask,
  }
  if layout == "eurobert":
    return fields | {"rope_parameters": rope[0], "rope_theta": thetas[0]}
  rope_parameters = dict(zip(_KINDS, rope))
  return fields | {"rope_parameters": rope_parameters, "layer_types": kinds, "sliding_window": radius}


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


def encoder_fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads our fields of `model` from a `config.json` in either spelling.

  DataError: a value that this encoder does not support, or an impossible size.
  """
  layout, fields = config["model_type"], sizes(config)
  is_modern = layout == "modernbert"
  refuse_others(config, _REFUSED)
  head_dim = fields["hidden_size"] // fields["num_heads"]
  refuse_others(config, {"head_dim": (None, head_dim)})
  refuse_others(config, {"num_key_value_heads": (None, fields["num_heads"])})
  activation = "hidden_activation" if is_modern else "hidden_act"
  refuse_others(config, {activation: ("gelu", "silu") if is_modern else ("silu", "gelu")})
  if is_modern:
    refuse_others(config, {"tie_word_embeddings": (True,)})
  pad_id = config.get("pad_token_id", {"modernbert": 50_283, "eurobert": 128_001}.get(layout, 0))
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
  epsilon = number(
    config, "norm_eps" if is_modern else "rms_norm_eps", 1e-6 if layout == "ultrabert" else 1e-5
  )
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
