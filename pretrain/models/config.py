"""Sizes and switches of one Transformer encoder."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """One encoder: the kept one, or a generator's trunk. Fields as in `configs/base.py` under `model`."""

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  mlp_size: int
  max_length: int
  num_segments: int = 0
  relative_position: str = "t5"  # 't5', 'official', 'none'
  relative_buckets: int = 32
  relative_max_distance: int = 128
  layer_norm_eps: float = 1e-5
  dropout: float = 0.1
  attention_dropout: float = 0.1
  init_stddev: float = 0.02
  dtype: str = "float32"
  remat: bool = False
  scan_unroll: int = 1

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
