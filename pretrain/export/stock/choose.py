"""Chooses the transformers class that computes exactly what an encoder of ours computes."""

from collections.abc import Collection
from typing import NamedTuple

from data.errors import ConfigError
from pretrain.export import folders
from pretrain.export.stock.config import MPNET_BUCKETS, MPNET_PAD
from pretrain.export.task_fields import ACTIVATIONS
from pretrain.models.layers import EncoderConfig

# The switches of an encoder that a class fixes: {field: value}.
_POST = {
  "norm_placement": "post",
  "norm": "layernorm",
  "norm_bias": True,
  "embedding_norm": True,
  "position": "learned",
  "mlp": "plain",
  "activation": "gelu",
  "attention_bias": True,
  "mlp_bias": True,
}
_PRE = {"norm_placement": "pre", "position": "rope", "relative_position": "none", "mlp": "gated"} | {
  "num_segments": 0
}
_RMS = _PRE | {"norm": "rmsnorm", "norm_bias": False, "embedding_norm": False}
_FIXED = dict.fromkeys((*folders.STOCK, *folders.OFFICIAL), _POST) | {
  "modernbert": _PRE | {"norm": "layernorm", "embedding_norm": True},
  "eurobert": _RMS,
  "ultrabert": _RMS,
}
_WINDOWED = ("modernbert", "ultrabert")
_REASONS = {
  "modernbert": "LayerNorm",
  "eurobert": "RMSNorm and no windows",
  "ultrabert": "RMSNorm and windows",
}


class Choice(NamedTuple):
  """A chosen layout, and the reason that the user sees."""

  layout: str  # one of `folders.STOCK`
  reason: str


def choose(config: EncoderConfig, *, pad_id: int, heads: Collection[str], activation: str = "tanh") -> Choice:
  """Returns the stock class that represents an encoder and its heads exactly; ConfigError if none does.

  `activation` is the classification head's, 'tanh' or 'gelu'.
  """
  # Of classes equally near, the first: a norm on embeddings is less of a change than another kind of norm.
  nearest_first = ["bert", "eurobert", "ultrabert", "modernbert"]
  if "question_answering" in heads:
    nearest_first.remove("eurobert")  # it has no class for this head; ultrabert without windows is the same
  faults = {layout: switch_faults(layout, config) for layout in nearest_first}
  nearest = min(faults, key=lambda layout: len(faults[layout]))
  if faults[nearest]:
    raise ConfigError(
      f"export: no class of transformers computes this encoder; the nearest is {nearest}, but "
      f"{faults[nearest][0]}; export it under this project's names\n  --to=torch"
    )
  if nearest in folders.PRE_NORM:
    answers = nearest == "ultrabert" and not config.has_windows
    reason = "RMSNorm and a head that answers questions" if answers else _REASONS[nearest]
    choice = Choice(nearest, f"pre-norm layers, rotary positions, gated MLPs, {reason}")
  elif config.relative_position == "none":
    if "classification" in heads:
      layout = "electra" if activation == ACTIVATIONS["electra"] else "bert"
      choice = Choice(layout, f"no relative positions, and {activation} in the classification head")
    elif "rtd" in heads:
      choice = Choice("electra", "no relative positions, and ELECTRA's class has a slot for the RTD head")
    else:
      choice = Choice("bert", "no relative positions")
  else:
    fault = _fault("mpnet", config, pad_id)
    if fault is None:
      choice = Choice("mpnet", "T5 buckets 32/128, no segments and padding id 1, as in MPNet's class")
    else:
      choice = Choice("layoutlmv3", f"text only, a row for every distance; not MPNet: {fault}")
  check_layout(choice.layout, config, pad_id=pad_id, heads=heads, activation=activation)
  return choice


def check_layout(
  layout: str, config: EncoderConfig, *, pad_id: int, heads: Collection[str], activation: str = "tanh"
) -> None:
  """Raises ConfigError, with the reason, if a class cannot represent an encoder exactly."""
  fault = _fault(layout, config, pad_id)
  if fault is None and "classification" in heads and layout not in folders.PRE_NORM:
    fault = folders.activation_fault("the class", layout, activation)
  if fault:
    folders.refuse(layout, fault)


def _relative(config: EncoderConfig) -> str:
  if config.relative_position == "none":
    return "none"
  return f"{config.relative_position} {config.relative_buckets}/{config.relative_max_distance}"


def switch_faults(layout: str, config: EncoderConfig) -> list[str]:
  """Explains which switches of an encoder a class does not have."""
  faults = [
    f"model.{name} is {getattr(config, name)!r}, and the class has {value!r}"
    for name, value in _FIXED[layout].items()
    if getattr(config, name) != value
  ]
  if layout not in _WINDOWED and config.has_windows:
    faults.append(f"some layers have a window of {config.window} tokens, and the class has none")
  return faults


def _fault(layout: str, config: EncoderConfig, pad_id: int) -> str | None:
  """Explains why a class cannot represent the encoder; None if it can."""
  if faults := switch_faults(layout, config):
    return faults[0]
  has_relative = config.relative_position != "none"
  if layout in ("bert", "electra") and has_relative:
    return f"relative positions are {_relative(config)}, but the class has none"
  if layout in ("mpnet", "layoutlmv3") and not has_relative:
    return "the model has no relative positions, but the class always adds them"
  if layout == "mpnet":
    if any(getattr(config, name) != value for name, value in MPNET_BUCKETS.items()):
      return f"relative positions are {_relative(config)}, but the class supports only t5 32/128"
    if pad_id != MPNET_PAD:
      return f"the padding id is {pad_id}, but the class fixes it to {MPNET_PAD}"
    if config.num_segments:
      return f"the model has {config.num_segments} segments, but the class has none"
  if layout == "layoutlmv3" and config.hidden_size % 2:
    return f"hidden_size is {config.hidden_size}, but the class needs an even one for its coordinates"
  return None
