"""Chooses the transformers class that computes exactly what an encoder of ours computes."""

from collections.abc import Collection
from typing import NamedTuple

from pretrain.export import folders
from pretrain.export.stock.config import MPNET_BUCKETS, MPNET_PAD
from pretrain.export.task_fields import ACTIVATIONS
from pretrain.models.config import EncoderConfig


class Choice(NamedTuple):
  """A chosen layout, and the reason that the user sees."""

  layout: str  # 'mpnet', 'layoutlmv3', 'bert', 'electra'
  reason: str


def choose(config: EncoderConfig, *, pad_id: int, heads: Collection[str], activation: str = "tanh") -> Choice:
  """Returns the stock class that represents an encoder and its heads exactly; ConfigError if none does.

  `activation` is the classification head's, 'tanh' or 'gelu'.
  """
  if config.relative_position == "none":
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
  if fault is None and "classification" in heads:
    fault = folders.activation_fault("the class", layout, activation)
  if fault:
    folders.refuse(layout, fault)


def _relative(config: EncoderConfig) -> str:
  if config.relative_position == "none":
    return "none"
  return f"{config.relative_position} {config.relative_buckets}/{config.relative_max_distance}"


def _fault(layout: str, config: EncoderConfig, pad_id: int) -> str | None:
  """Explains why a class cannot represent the encoder; None if it can."""
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
