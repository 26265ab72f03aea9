"""Computes the nominal floating-point operations of a training step by formula: every layer counts whole.

XLA's cost analysis would count a scanned layer once. A product [a, b] x [b, c] counts 2abc. Elementwise work,
norms, softmaxes and recomputation are not counted. Where a last layer is computed at some tokens alone, as in
masked LM, fewer operations are executed than are counted.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from pretrain.settings.model import EncoderSettings
from pretrain.settings.objectives import switched_on


def layers_flops(model: Mapping[str, Any], *, length: int, depth: int = 0, **sizes: int) -> float:
  """Returns the forward FLOP per token of an encoder's layers.

  A layer has 8H^2 for attention kernels, 4HF for the MLP (6HF if it is gated), and 4kH for scores and their
  product with values, k being the mean number of keys that a query reads. Disentangled scores have three
  terms, so 8kH; the projections of their positions, once a batch, do not count.

  Args:
    model: the fields under `model`; those that an older config lacks have their defaults.
    length: tokens in a row.
    depth: number of layers; 0: the encoder's.
    sizes: hidden_size and mlp_size of a generator, instead of the encoder's.
  """
  config = EncoderSettings(
    **{f.name: model[f.name] for f in dataclasses.fields(EncoderSettings) if f.name in model}
  )
  width, wide = sizes.get("hidden_size", config.hidden_size), sizes.get("mlp_size", config.mlp_size)
  radius = config.window // 2
  near = min(length, 2 * radius + 1 - radius * (radius + 1) / length) if radius < length else length
  keys = sum(length if config.is_global(layer) else near for layer in range(depth or config.num_layers))
  shared = config.kv_heads / config.num_heads if width == config.hidden_size else 1
  products = (4 + 4 * shared) * width**2 + (6 if config.mlp == "gated" else 4) * width * wide
  scores = 8 if config.relative_position == "disentangled" else 4
  return (depth or config.num_layers) * products + scores * width * keys


def forward_parts(config: Mapping[str, Any]) -> dict[str, float]:
  """Returns {part: FLOP per token of the batch}; training costs three times as much.

  A trained part runs once forward and twice backward. A part that only runs forward (a second pass for
  sampling, a frozen generator) therefore counts a third of its forward pass. `config` is as in
  `configs/base.py`, or the plain dict stored with a checkpoint.
  """
  model, length = config["model"], config["data"]["length"]
  parts = {"encoder": layers_flops(model, length=length)}
  if model.get("embedding_size", 0) not in (0, model["hidden_size"]):
    parts["embedding projection"] = 2 * model["embedding_size"] * model["hidden_size"]
  if config["corruption"]["kind"] == "generator":
    parts |= _generator_parts(config)
  for name, objective in switched_on(config["objectives"]).items():
    parts |= objective.flops(model, _masked_fraction(config))
    if depth := objective.own_layers:
      parts[f"{name} decoder"] = layers_flops(model, length=length, depth=depth)
    crop = objective.crop_tokens(length)
    if crop:
      parts[f"{name} pass"] = crop / length * layers_flops(model, length=crop)
  return parts


def training_flops_per_token(config: Mapping[str, Any]) -> float:
  """Returns the forward and backward FLOP per token of the batch; padding counts as tokens."""
  return 3.0 * sum(forward_parts(config).values())


def _masked_fraction(config: Mapping[str, Any]) -> float:
  """Returns predicted positions per token under the count rule at its largest rate.

  Other rules have the same mean. In stages with smaller rates positions stay unused.
  """
  length, fields = config["data"]["length"], config["corruption"]
  rate = max([rate for _, rate in fields.get("mask_rates", ())] or [fields["mask_rate"]])
  # Rounded first, because 0.07 * 100 is a little above 7 in floating point.
  return math.ceil(round(rate * length, 9)) / length


def _generator_parts(config: Mapping[str, Any]) -> dict[str, float]:
  model, fields, masked = config["model"], config["generator"], _masked_fraction(config)
  width, vocab = model.get("embedding_size") or model["hidden_size"], model["vocab_size"]
  own = fields["hidden_size"] or model["hidden_size"]
  sizes = {"hidden_size": own, "mlp_size": fields["mlp_size"] or model["mlp_size"]}
  depths = fields["separate_layers"] or (fields["num_layers"],)
  length = config["data"]["length"]
  trunk = sum(layers_flops(model, length=length, depth=depth, **sizes) for depth in depths)
  num_heads = len(fields["separate_layers"]) or len(fields["mlm_layers"]) or 1
  # The head's output gets the width of the token table that it is multiplied with: from its dense layer, or
  # from the transposed projection of the table.
  head = 2 * own * (width if fields["projection"] == "embeddings" else own)
  head += 2 * own * width if own != width and fields["projection"] == "table" else 0
  output = own if fields["projection"] == "none" else width
  parts = {"generator": trunk, "generator heads": num_heads * masked * (head + 2 * output * vocab)}
  if own != width and fields["projection"] != "none":
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
