"""Heads on hidden states. Their output tables are the token table, so only the small parts are here."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from pretrain.models.config import EncoderConfig
from pretrain.models.layers import dense_init, layer_norm


class TransformHead(nn.Module):
  """LN(gelu(W h + b)): the masked-LM transform and COCO-LM's projection for sequence contrast."""

  config: EncoderConfig
  output_size: int

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Maps [..., embed] to [..., output_size]."""
    config = self.config
    dense = nn.Dense(
      self.output_size,
      dtype=config.compute_dtype,
      kernel_init=dense_init(config.init_stddev),
      name="dense",
    )
    return layer_norm(config, "norm")(nn.gelu(dense(hidden), approximate=False))


class BinaryHead(nn.Module):
  """One logit per token, z > 0 meaning "original", optionally after a dense layer with gelu.

  Source: COCO-LM section 3, official model.py (linear); google-research/electra (dense, opposite sign).
  """

  config: EncoderConfig
  dense: bool

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Maps [batch, length, embed] to [batch, length] float32 logits."""
    config = self.config
    init = dense_init(config.init_stddev)
    if self.dense:
      layer = nn.Dense(config.hidden_size, dtype=config.compute_dtype, kernel_init=init, name="dense")
      hidden = nn.gelu(layer(hidden), approximate=False)
    kernel = self.param("kernel", init, (config.hidden_size, 1))
    bias = self.param("bias", nn.initializers.zeros, (1,))
    return (hidden.astype(jnp.float32) @ kernel + bias)[..., 0]


def _init(module: nn.Module, key: jax.Array, input_size: int) -> dict:
  return module.init(key, jnp.zeros((1, 1, input_size)))["params"]


def init_mlm_head(key: jax.Array, config: EncoderConfig, *, output_size: int) -> dict:
  """{'dense', 'norm', 'bias' [vocab]}: transform to the width of the token table, output bias 0."""
  params = _init(TransformHead(config, output_size), key, config.hidden_size)
  return {**params, "bias": jnp.zeros((config.vocab_size,), jnp.float32)}


def apply_transform(params: dict, config: EncoderConfig, hidden: jax.Array) -> jax.Array:
  """LN(gelu(W h + b)) of [..., embed]; `params` may hold an output `bias`, which is not used here."""
  parts = {"dense": params["dense"], "norm": params["norm"]}
  output_size = params["dense"]["kernel"].shape[-1]
  return TransformHead(config, output_size).apply({"params": parts}, hidden)


def init_rtd_head(key: jax.Array, config: EncoderConfig, *, dense: bool) -> dict:
  """{'kernel' [embed, 1], 'bias' [1]} and, if asked, {'dense'}."""
  return _init(BinaryHead(config, dense), key, config.hidden_size)


def apply_rtd_head(params: dict, config: EncoderConfig, hidden: jax.Array) -> jax.Array:
  """[batch, length] float32 logits of "this token is the original one"."""
  return BinaryHead(config, "dense" in params).apply({"params": params}, hidden)


def init_clm_head(config: EncoderConfig) -> dict:
  """{'bias' [vocab]}: no transform (COCO-LM appendix D: removing the projection stabilises)."""
  return {"bias": jnp.zeros((config.vocab_size,), jnp.float32)}


def init_scl_head(key: jax.Array, config: EncoderConfig, *, projection_size: int) -> dict:
  """{'dense', 'norm'}: the released models' projection of h of [CLS]."""
  return _init(TransformHead(config, projection_size), key, config.hidden_size)


def init_projection(key: jax.Array, config: EncoderConfig, *, output_size: int) -> dict:
  """{'kernel' [embed, output_size], 'bias'}: between embeddings and a generator of another width."""
  kernel = config.init_stddev * jax.random.normal(key, (config.hidden_size, output_size), jnp.float32)
  return {"kernel": kernel, "bias": jnp.zeros((output_size,), jnp.float32)}


def apply_projection(params: dict, x: jax.Array) -> jax.Array:
  """x @ kernel + bias in x's dtype."""
  return x @ params["kernel"].astype(x.dtype) + params["bias"].astype(x.dtype)


def init_mixture(key: jax.Array, config: EncoderConfig) -> dict:
  """{'kernel' [embed, 1]}: AMOS's vector v, without bias, shared by all heads."""
  return {"kernel": config.init_stddev * jax.random.normal(key, (config.hidden_size, 1), jnp.float32)}
