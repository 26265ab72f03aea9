"""Which stock transformers class holds an encoder exactly, and why the others do not."""

from collections.abc import Collection
from typing import NamedTuple

from pretrain.export import folders
from pretrain.export.stock.config import MPNET_BUCKETS, MPNET_PAD
from pretrain.export.task_fields import ACTIVATIONS
from pretrain.models.config import EncoderConfig


class Choice(NamedTuple):
  """A layout, and the reason for the user."""

  layout: str  # 'mpnet', 'layoutlmv3', 'bert', 'electra'
  reason: str


def choose(config: EncoderConfig, *, pad_id: int, heads: Collection[str], activation: str = "tanh") -> Choice:
  """The stock class that holds an encoder and its heads exactly; ConfigError if none does.

  `activation` is that of a head 'classification', 'tanh' or 'gelu'.
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
  """Refuses a class that cannot hold an encoder exactly, with a ConfigError that says why."""
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
  """Why a class cannot hold the encoder; None: it can."""
  has_relative = config.relative_position != "none"
  if layout in ("bert", "electra") and has_relative:
    return f"relative positions are {_relative(config)}, the class has none"
  if layout in ("mpnet", "layoutlmv3") and not has_relative:
    return "there are no relative positions, the class always adds them"
  if layout == "mpnet":
    if any(getattr(config, name) != value for name, value in MPNET_BUCKETS.items()):
      return f"relative positions are {_relative(config)}, the class computes t5 32/128 alone"
    if pad_id != MPNET_PAD:
      return f"the padding id is {pad_id}, the class has {MPNET_PAD} in its code"
    if config.num_segments:
      return f"there are {config.num_segments} segments, the class has none"
  if layout == "layoutlmv3" and config.hidden_size % 2:
    return f"hidden_size is {config.hidden_size}, the class needs an even one for its coordinates"
  return None
