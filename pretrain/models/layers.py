"""One post-LN Transformer layer."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from pretrain.models.config import EncoderConfig
from pretrain.ops import row_random
from pretrain.ops.attention import BY_DISTANCE, attention
from pretrain.ops.attention_at import attention_at
from pretrain.ops.dense import dense
from pretrain.ops.gelu import gelu
from pretrain.ops.kept import keep
from pretrain.ops.layer_norm import layer_norm
from pretrain.ops.positions import take_positions
from pretrain.ops.row_random import Part, Use
from pretrain.sharding import constrain


def dense_init(stddev: float) -> nn.initializers.Initializer:
  """N(0, stddev) for every kernel and table (official init_bert_params); no scaling with depth."""
  return nn.initializers.normal(stddev)


class LayerNorm(nn.Module):
  """`ops.layer_norm` with its parameters."""

  config: EncoderConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., width] to the same in the dtype of the computation."""
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
    return layer_norm(x, scale, bias, self.config.layer_norm_eps, self.config.compute_dtype)


class _Dense(nn.Module):
  """A dense layer over the last axis whose parameters may have heads; its input and output have none.

  A TPU pads an array [..., heads, 64] to twice its size, and copies it into and out of that form.
  """

  config: EncoderConfig
  kernel: tuple[int, ...]  # shapes of the parameters
  bias: tuple[int, ...]
  keeps_input: bool = False
  stops_bias: bool = False  # the bias gets its gradient elsewhere

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., inputs] to [..., outputs]: the products of the axes that the parameters have instead."""
    flat, dtype = (x.shape[-1], math.prod(self.bias)), self.config.compute_dtype
    init = dense_init(self.config.init_stddev)
    kernel = self.param("kernel", lambda key: jnp.reshape(init(key, flat), self.kernel))
    bias = self.param("bias", nn.initializers.zeros, self.bias)
    bias = jax.lax.stop_gradient(bias) if self.stops_bias else bias
    return dense(
      x.astype(dtype), jnp.reshape(kernel, flat).astype(dtype), jnp.reshape(bias, -1), self.keeps_input
    )


class SelfAttention(nn.Module):
  """Multi-head self-attention with an additive bias shared by all layers."""

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    token_mask: jax.Array,
    bias: jax.Array | None,
    row_keys: jax.Array | None,
    read: jax.Array | None = None,
  ) -> jax.Array:
    """[batch, length, embed] to the same; rows without any token give 0, without the output bias.

    With `read`, [batch, n] int32, to [batch, n, embed] at these positions.
    """
    config = self.config
    width, heads = x.shape[-1], (config.num_heads, config.head_dim)
    queries = x if read is None else take_positions(x, read)
    # The kernels that sum the bias table's gradient sum those of these biases too.
    by_kernel = read is None and config.attention in BY_DISTANCE
    biases = []

    def project(of: jax.Array, name: str) -> jax.Array:
      dense = _Dense(config, (width, *heads), heads, stops_bias=by_kernel, name=name)
      projected = keep(dense(of))
      biases.append(dense.get_variable("params", "bias"))
      return constrain(
        jnp.reshape(projected, (*of.shape[:2], *heads)), "batch", "length", "heads", "head_dim"
      )

    query, key, value = project(queries, "query"), project(x, "key"), project(x, "value")
    options = {
      "bias": bias,
      "key_mask": token_mask,
      "dropout_rate": config.attention_dropout,
      "row_keys": row_keys,
    }
    if read is None:
      added = jnp.stack(biases) if by_kernel else None
      attended = attention(query, key, value, added=added, implementation=config.attention, **options)
    else:
      attended = attention_at(query, key, value, read, **options)
    attended = constrain(attended, "batch", "length", "heads", "head_dim")
    outward = _Dense(config, (*heads, width), (width,), keeps_input=True, name="output")
    output = outward(jnp.reshape(attended, queries.shape))
    output = constrain(output, "batch", "length", "embed")
    # The official code sets NaN, which only such rows produce, to 0 after the out-projection.
    has_token = jnp.any(token_mask, axis=-1)[:, None, None]
    return jnp.where(has_token, output, jnp.zeros_like(output))


class Layer(nn.Module):
  """Post-LN layer: x = LN(x + attention(x)); x = LN(x + mlp(x)), exact (erf) GELU.

  Source: official transformer_sentence_encoder_layer.py (normalize_before is False for every net).
  """

  config: EncoderConfig

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    token_mask: jax.Array,
    bias: jax.Array | None,
    row_keys: jax.Array | None,
    collect: jax.Array | None,
    index: jax.Array,
    detach: jax.Array | None,
    offset: jax.Array | None,
    read: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """One layer as a scan step: the carry, and what `collect` asked for.

    Args:
      x: [batch, length, embed] float, the carry.
      token_mask: [batch, length] bool, False at padding.
      bias: as `ops.attention` takes it for the body `config.attention`, or None.
      row_keys: [batch] keys of this pass; None: no dropout.
      collect: [batch, positions] int32 positions to read after this layer, or None.
      index: [] int32 layer number from 0.
      detach: [] bool: no gradient flows from this layer into its input; None: it does.
      offset: [batch, length, embed] float added to the output, or None.
      read: [batch, n] int32 positions at which the output is computed, [batch, n, embed]; None: everywhere.
    """
    config = self.config
    keys = None if row_keys is None else row_random.fold(row_keys, index)
    if detach is not None:
      x = jnp.where(detach, jax.lax.stop_gradient(x), x)
    attended = SelfAttention(config, name="attention")(x, token_mask, bias, keys, read)
    part = None if read is None else Part(read, 0, x.shape[1])
    drop = functools.partial(row_random.dropout, row_keys=keys, rate=config.dropout, part=part)
    attended = drop(attended, use=Use.ATTENTION_OUTPUT_DROPOUT)
    x = x if read is None else take_positions(x, read)
    x = LayerNorm(config, name="attention_norm")(keep(x + attended))
    width, wide = (config.hidden_size,), (config.mlp_size,)
    y = keep(constrain(_Dense(config, width + wide, wide, name="up")(x), "batch", "length", "mlp"))
    y = _Dense(config, wide + width, width, name="down")(gelu(y))
    y = constrain(y, "batch", "length", "embed")
    y = drop(y, use=Use.MLP_OUTPUT_DROPOUT)
    x = LayerNorm(config, name="mlp_norm")(keep(x + y))
    x = x if offset is None else x + offset
    return x, None if collect is None else take_positions(x, collect)
