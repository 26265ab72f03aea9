"""Floating-point operations of a training step.

Counted by formula: XLA's cost analysis counts a scanned layer once. A product [a, b] x [b, c] is 2abc;
elementwise work, norms and softmaxes are left out, and so is what is computed twice to save memory.
"""

import math
from collections.abc import Mapping
from typing import Any

from pretrain.settings.objectives import switched_on


def layer_flops(*, hidden_size: int, mlp_size: int, length: int) -> int:
  """Forward, per token: query, key, value, output 8H^2; MLP 4HF; scores and their product with values 4LH."""
  return 8 * hidden_size**2 + 4 * hidden_size * mlp_size + 4 * length * hidden_size


def forward_parts(config: Mapping[str, Any]) -> dict[str, float]:
  """{part: FLOP per token of the batch}, a third of what the part of a step costs in training.

  A trained part costs its forward pass three times (once forward, twice backward), one that is only run (a
  second pass for sampling, a frozen generator) once, so it counts with a third of its forward pass. The
  config is as `configs/base.py`, or the plain dict stored with a checkpoint.
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
  """Forward and backward FLOP per token of the batch (padding counts as a token), as `forward_parts`."""
  return 3.0 * sum(forward_parts(config).values())


def _masked_fraction(config: Mapping[str, Any]) -> float:
  """Predicted positions per token under the count rule; the others have the same mean."""
  length = config["data"]["length"]
  # Rounded first: a product such as 0.07 * 100 comes out a little above the integer in floating point.
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
  # The head's transform ends at the width of the table it is multiplied with.
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
    # The gradient to the one-hot, that to the logits, and the logits computed again in the backward pass.
    parts["soft embedding"] = masked * 2 * width * vocab
  return parts
