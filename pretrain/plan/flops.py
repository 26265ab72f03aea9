"""Computes the floating-point operations of a training step by formula.

XLA's cost analysis would count a scanned layer once. A product [a, b] x [b, c] counts 2abc. Elementwise work,
norms, softmaxes and recomputation are not counted.
"""

import math
from collections.abc import Mapping
from typing import Any

from pretrain.settings.objectives import switched_on


def layer_flops(*, hidden_size: int, mlp_size: int, length: int) -> int:
  """Returns a layer's forward FLOP per token: 8H^2 for attention kernels, 4HF for the MLP, 4LH for scores."""
  return 8 * hidden_size**2 + 4 * hidden_size * mlp_size + 4 * length * hidden_size


def forward_parts(config: Mapping[str, Any]) -> dict[str, float]:
  """Returns {part: FLOP per token of the batch}; training costs three times as much.

  A trained part runs once forward and twice backward. A part that only runs forward (a second pass for
  sampling, a frozen generator) therefore counts a third of its forward pass. `config` is as in
  `configs/base.py`, or the plain dict stored with a checkpoint.
  """
  model, length = config["model"], config["data"]["length"]
  layer = layer_flops(hidden_size=model["hidden_size"], mlp_size=model["mlp_size"], length=length)
  parts = {"encoder": model["num_layers"] * layer}
  if config["corruption"]["kind"] == "generator":
    parts |= _generator_parts(config)
  for name, objective in switched_on(config["objectives"]).items():
    parts |= objective.flops(model, _masked_fraction(config))
    crop = objective.crop_tokens(length)
    if crop:
      layer = layer_flops(hidden_size=model["hidden_size"], mlp_size=model["mlp_size"], length=crop)
      parts[f"{name} pass"] = crop / length * model["num_layers"] * layer
  return parts


def training_flops_per_token(config: Mapping[str, Any]) -> float:
  """Returns the forward and backward FLOP per token of the batch; padding counts as tokens."""
  return 3.0 * sum(forward_parts(config).values())


def _masked_fraction(config: Mapping[str, Any]) -> float:
  """Returns predicted positions per token under the count rule; other rules have the same mean."""
  length = config["data"]["length"]
  # Rounded first, because 0.07 * 100 is a little above 7 in floating point.
  return math.ceil(round(config["corruption"]["mask_rate"] * length, 9)) / length


def _generator_parts(config: Mapping[str, Any]) -> dict[str, float]:
  model, fields, masked = config["model"], config["generator"], _masked_fraction(config)
  width, vocab = model["hidden_size"], model["vocab_size"]
  own = fields["hidden_size"] or width
  layer = layer_flops(
    hidden_size=own, mlp_size=fields["mlp_size"] or model["mlp_size"], length=config["data"]["length"]
  )
  depth = sum(fields["separate_layers"]) or fields["num_layers"]
  num_heads = len(fields["separate_layers"]) or len(fields["mlm_layers"]) or 1
  # The head's output has the width of the token table that it is multiplied with.
  output = width if fields["projection"] == "embeddings" else own
  parts = {
    "generator": depth * layer,
    "generator heads": num_heads * masked * (2 * own * output + 2 * output * vocab),
  }
  if own != width:
    parts["generator projection"] = 2 * width * own
  if fields["frozen"]:
    return {name: flops / 3 for name, flops in parts.items()}
  has_dropout = model["dropout"] > 0 or model["attention_dropout"] > 0
  if fields["sampling_dropout"] == "eval" and has_dropout:
    parts["sampling pass"] = sum(parts.values()) / 3
  if fields["mixture"] == "adversarial":
    # Gradients with respect to the one-hot and the logits, and logits recomputed in the backward pass.
    parts["soft embedding"] = masked * 2 * width * vocab
  return parts
