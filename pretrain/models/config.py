"""Sizes and switches of one Transformer encoder."""

import jax
import jax.numpy as jnp

from pretrain.settings.model import EncoderSettings


class EncoderConfig(EncoderSettings):
  """The settings of an encoder, and what its functions derive from them."""

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
