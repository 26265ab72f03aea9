"""Sizes and switches of a Transformer encoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pretrain.settings.model import EncoderSettings


class EncoderConfig(EncoderSettings):
  """The settings of an encoder, with derived values."""

  @property
  def head_dim(self) -> int:
    """Width of one attention head."""
    return self.hidden_size // self.num_heads

  @property
  def compute_dtype(self) -> jnp.dtype:
    """The dtype of matrix products; 'auto' is float32 on CPU, where bfloat16 gains nothing, else bfloat16."""
    if self.dtype == "auto":
      return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
    return jnp.dtype(self.dtype)


def encoder_config(model: Mapping[str, Any], **changes: Any) -> EncoderConfig:
  """Returns an encoder's config from the fields under `model`; missing fields have their defaults."""
  fields = [field.name for field in dataclasses.fields(EncoderConfig)]
  return EncoderConfig(**{name: model[name] for name in fields if name in model} | changes)


def activation_bytes(
  encoder: EncoderConfig, *, tokens: int, length: int, depth: int = 0, has_plain_attention: bool = True
) -> float:
  """Estimates the bytes that layers store of one batch for the backward pass.

  It counts about 9 numbers per token and width, 2 per MLP width (3 if it is gated), and the probabilities of
  plain attention. With recomputation it counts one whole layer, and what is kept of every layer.

  Args:
    tokens: of the batch, in rows of `length`.
    depth: number of layers that the batch passes; 0: those of the encoder.
  """
  depth = depth or encoder.num_layers
  width = encoder.compute_dtype.itemsize
  mlps = 2 if encoder.mlp == "gated" else 1  # arrays of the MLP's width that a product makes
  # Bytes of a 16-bit dtype: 18 for the encoder's width, 4 for the MLP's; 34 where that is four times as wide.
  per_token = (18 * encoder.hidden_size + 2 * (1 + mlps) * encoder.mlp_size) * width // 2
  if has_plain_attention:
    per_token += 2 * encoder.num_heads * length * width
  layer, layer_input = tokens * per_token, tokens * encoder.hidden_size * width
  # Input, query, key, value, attended, output and down, and up and gate, which are wider.
  products = layer_input * (7 + mlps * encoder.mlp_size / encoder.hidden_size)
  kept_of_each = {"cheap": products, "full": layer_input}
  return depth * layer if encoder.remat == "none" else layer + depth * kept_of_each[encoder.remat]
