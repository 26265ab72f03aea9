"""The encoder in plain PyTorch from the tensors of `--to=torch`, with every switch of `model`.

It shares no code with the JAX encoder, except the buckets of relative positions. Needs the export extra.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import official_buckets, t5_buckets

Tensors = dict[str, torch.Tensor]
_ACTIVATIONS = {"gelu": F.gelu, "silu": F.silu}


def hidden_states(
  state: Tensors, config: EncoderConfig, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
  """Computes last hidden states [batch, length, embed] from {our path: tensor}.

  `ids` is int64 [batch, length]; `mask` is [batch, length], 0 at padding, and every row has a token. Kernels
  are [in, out], and layers are stacked.
  """
  tensors = {path.removeprefix("encoder/"): tensor for path, tensor in state.items()}
  prefix = "trunk/layers/"
  layers = {path.removeprefix(prefix): each for path, each in tensors.items() if path.startswith(prefix)}
  is_pre, act = config.norm_placement == "pre", _ACTIVATIONS[config.activation]

  def norm(x: torch.Tensor, of: Tensors, path: str) -> torch.Tensor:
    scale = of[f"{path}/scale"]
    if config.norm == "rmsnorm":
      return F.rms_norm(x, scale.shape, scale, config.layer_norm_eps)
    return F.layer_norm(x, scale.shape, scale, of.get(f"{path}/bias"), config.layer_norm_eps)

  length = ids.shape[1]
  x = tensors["embeddings/token/embedding"][ids]
  if config.position == "learned":
    x = x + tensors["embeddings/position/embedding"][:length]
  if config.num_segments:
    x = x + tensors["embeddings/segment/embedding"][0]
  x = norm(x, tensors, "embeddings/norm") if config.embedding_norm else x
  x = x * mask[..., None].to(x.dtype)
  normed = x if config.embedding_norm else norm(x, tensors, "trunk/first_norm")
  bias = _bias(tensors, config, mask, x.dtype)
  for number in range(config.num_layers):
    layer = {path: stack[number] for path, stack in layers.items()}
    is_global = config.is_global(number)
    x = x + _attended(normed, layer, config, bias[is_global], is_global)
    normed = norm(x, layer, "attention_norm")
    x = x if is_pre else normed
    up = _dense(normed, layer, "up")
    inner = act(up) if config.mlp == "plain" else act(_dense(normed, layer, "gate")) * up
    x = x + _dense(inner, layer, "down")
    normed = norm(x, layer, "mlp_norm")
    x = x if is_pre else normed
  return normed


def _dense(x: torch.Tensor, layer: Tensors, path: str) -> torch.Tensor:
  """A dense layer without axes of heads: a kernel [in, heads, width] or [heads, width, out] is flattened."""
  kernel, bias = layer[f"{path}/kernel"], layer.get(f"{path}/bias")
  y = x @ kernel.reshape(x.shape[-1], -1)
  return y if bias is None else y + bias.flatten()


def _bias(
  tensors: Tensors, config: EncoderConfig, mask: torch.Tensor, dtype: torch.dtype
) -> dict[bool, torch.Tensor]:
  """Returns what is added to the scores, of layers that read all keys (True) and of those with a window."""
  length = mask.shape[1]
  never = torch.finfo(dtype).min / 2  # finite, because padding may be far from every token
  bias = torch.zeros(len(mask), 1, 1, length, dtype=dtype).masked_fill(mask[:, None, None] == 0, never)
  if config.relative_position != "none":
    sizes = {"num_buckets": config.relative_buckets, "max_distance": config.relative_max_distance}
    if config.relative_position == "t5":
      buckets = t5_buckets(length, **sizes)
    else:
      buckets = official_buckets(length, max_length=config.max_length, **sizes)
    table = tensors["trunk/relative_position/embedding"]
    bias = bias + table[torch.from_numpy(buckets.astype(np.int64))].permute(2, 0, 1)
  places = torch.arange(length)
  is_far = (places[:, None] - places).abs() > config.window // 2
  return {True: bias, False: bias.masked_fill(is_far, never)}


def _attended(
  x: torch.Tensor, layer: Tensors, config: EncoderConfig, bias: torch.Tensor, is_global: bool
) -> torch.Tensor:
  query, key, value = (
    _dense(x, layer, f"attention/{name}").unflatten(-1, (config.num_heads, -1)).transpose(1, 2)
    for name in ("query", "key", "value")
  )
  if config.position == "rope":
    theta = config.rope_theta if is_global else config.rope_theta_local
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] / theta**pairs

    def rotated(x: torch.Tensor) -> torch.Tensor:
      first, second = x.chunk(2, dim=-1)
      cosines, sines = angles.cos(), angles.sin()
      return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)

    query, key = rotated(query), rotated(key)
  scores = query @ key.transpose(-1, -2) / math.sqrt(config.head_dim) + bias
  attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
  return _dense(attended, layer, "attention/output")
