"""One post-LN Transformer layer."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from pretrain.mesh.sharding import constrain
from pretrain.models.config import EncoderConfig
from pretrain.ops.attention.attention import BY_DISTANCE, attention, packed_attention, platform, reads_packed
from pretrain.ops.attention.attention_at import attention_at
from pretrain.ops.dense import add_bias, product
from pretrain.ops.draws import row_random
from pretrain.ops.draws.row_random import Part, Use
from pretrain.ops.gelu_product import biased_gelu_product
from pretrain.ops.kept import keep
from pretrain.ops.norm.added_norm import Branch, Settings, added_norm
from pretrain.ops.norm.layer_norm import layer_norm
from pretrain.ops.positions import take_positions


def dense_init(stddev: float) -> nn.initializers.Initializer:
  """Returns the initialiser N(0, stddev) of all kernels and tables (official init_bert_params)."""
  return nn.initializers.normal(stddev)


class LayerNorm(nn.Module):
  """`ops.layer_norm` with its parameters."""

  config: EncoderConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises [..., width]; the result is in the compute dtype."""
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
    return layer_norm(x, scale, bias, self.config.layer_norm_eps, self.config.compute_dtype)


class AddedNorm(nn.Module):
  """`ops.added_norm` with the norm's parameters."""

  config: EncoderConfig
  use: Use  # of the branch's dropout

  @nn.compact
  def __call__(self, x: jax.Array, branch: Branch, part: Part | None) -> jax.Array:
    """Normalises the sum of x [batch, length, width] and a branch; the result is in the compute dtype."""
    config = self.config
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
    settings = Settings(config.dropout, self.use, config.layer_norm_eps, config.compute_dtype)
    return added_norm(x, branch, scale, bias, settings, part=part)


class _Dense(nn.Module):
  """Parameters of a dense layer: a kernel over the last axis, and a bias.

  The parameters may have an axis of heads; input and output have none, because a TPU pads an array
  [..., heads, 64] to twice its size, and copies it into and out of that form.
  """

  config: EncoderConfig
  kernel: tuple[int, ...]  # shapes of the parameters
  bias: tuple[int, ...]

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel, [inputs, outputs] in the compute dtype, and the bias in the parameter's shape.

    Several axes of the kernel's parameter become one axis of inputs and one of outputs.
    """
    outputs = math.prod(self.bias)
    flat, init = (math.prod(self.kernel) // outputs, outputs), dense_init(self.config.init_stddev)
    kernel = self.param("kernel", lambda key: jnp.reshape(init(key, flat), self.kernel))
    bias = self.param("bias", nn.initializers.zeros, self.bias)
    return jnp.reshape(kernel, flat).astype(self.config.compute_dtype), bias


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
    x_read: jax.Array | None = None,
  ) -> Branch:
    """Computes the branch that is added to x, [batch, length, embed].

    With `read`, [batch, n] int32, the branch is computed at these positions only. `x_read` is x at them, if
    the caller has it.
    """
    config = self.config
    width, heads = x.shape[-1], (config.num_heads, config.head_dim)
    dense = [_Dense(config, (width, *heads), heads, name=name)() for name in ("query", "key", "value")]
    # On a TPU the kernels for all queries take half the time of products for a seventh of them.
    is_whole = read is None or (config.attention == "pallas_tpu" and 8 * read.shape[1] > x.shape[1])
    # The kernels with a bias by distance also sum the gradients of these three biases.
    by_kernel = is_whole and config.attention in BY_DISTANCE
    added = jnp.stack([bias for _, bias in dense]) if by_kernel else None
    options = {
      "bias": bias,
      "key_mask": token_mask,
      "dropout_rate": config.attention_dropout,
      "row_keys": row_keys,
    }

    def project(of: jax.Array, *dense: tuple[jax.Array, jax.Array]) -> jax.Array:
      kernel = jnp.concatenate([kernel for kernel, _ in dense], axis=1)
      bias = jnp.concatenate([jnp.reshape(bias, -1) for _, bias in dense])
      bias = jax.lax.stop_gradient(bias) if by_kernel else bias
      return keep(add_bias(product(of.astype(kernel.dtype), kernel), bias))

    def with_heads(projected: jax.Array) -> jax.Array:
      projected = jnp.reshape(projected, (*projected.shape[:2], *heads))
      return constrain(projected, "batch", "length", "heads", "head_dim")

    if added is not None and reads_packed(config.attention):
      packed = jnp.reshape(project(x, *dense), (*x.shape[:2], 3, *heads))
      attended = packed_attention(packed, added=added, **options)
    else:
      queries = x if is_whole or read is None else take_positions(x, read) if x_read is None else x_read
      query, key, value = (
        with_heads(project(of, each)) for of, each in zip((queries, x, x), dense, strict=True)
      )
      if is_whole or read is None:
        attended = attention(query, key, value, added=added, implementation=config.attention, **options)
      else:
        attended = attention_at(query, key, value, read, **options)
    attended = constrain(attended, "batch", "length", "heads", "head_dim")
    kernel, output_bias = _Dense(config, (*heads, width), (width,), name="output")()
    attended = jnp.reshape(attended, (*attended.shape[:2], width))
    attended = take_positions(attended, read) if is_whole and read is not None else attended
    output = constrain(product(attended.astype(kernel.dtype), kernel, True), "batch", "length", "embed")
    # As in the official code, which sets NaN to 0 here; only rows without a token produce NaN.
    return Branch(output, output_bias, jnp.any(token_mask, axis=-1), row_keys)


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
    """Computes one layer as a scan step; returns the carry and the `collect`ed positions.

    Args:
      x: [batch, length, embed] float, the carry.
      token_mask: [batch, length] bool, False at padding.
      bias: as `ops.attention` needs it for the body `config.attention`, or None.
      row_keys: [batch] keys of this pass; None: no dropout.
      collect: [batch, positions] int32 positions to read after this layer, or None.
      index: [] int32 layer number from 0.
      detach: [] bool: True stops the gradient into this layer's input; None: never.
      offset: [batch, length, embed] float added to the output, or None.
      read: [batch, n] int32 positions at which the output is computed, [batch, n, embed]; None: everywhere.
    """
    config = self.config
    keys = None if row_keys is None else row_random.fold(row_keys, index)
    if detach is not None:
      x = jnp.where(detach, jax.lax.stop_gradient(x), x)
    part = None if read is None else Part(read, 0, x.shape[1])
    # XLA would join two lookups' gradients in one scatter, which a GPU rounds in varying order.
    taken = take_positions(x, read) if read is not None and platform() == "gpu" else None
    attended = SelfAttention(config, name="attention")(x, token_mask, bias, keys, read, taken)
    x = x if read is None else take_positions(x, read) if taken is None else taken
    x = AddedNorm(config, Use.ATTENTION_OUTPUT_DROPOUT, name="attention_norm")(x, attended, part)
    width, wide = (config.hidden_size,), (config.mlp_size,)
    up, up_bias = _Dense(config, width + wide, wide, name="up")()
    y = product(x.astype(up.dtype), up)
    down, down_bias = _Dense(config, wide + width, width, name="down")()
    y = biased_gelu_product(y, up_bias, down)
    y = Branch(constrain(y, "batch", "length", "embed"), down_bias, None, keys)
    x = AddedNorm(config, Use.MLP_OUTPUT_DROPOUT, name="mlp_norm")(x, y, part)
    x = x if offset is None else x + offset
    return x, None if collect is None else take_positions(x, collect)
