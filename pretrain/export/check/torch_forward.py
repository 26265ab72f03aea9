"""The encoder in plain PyTorch, for the official layouts, which transformers cannot load.

It follows the official models' code and reads their tensors by name, without the export's tables of names. So
a wrong row in a table shows as a difference of hidden states. Needs the extra.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from pretrain.ops.positions import official_buckets

Tensors = dict[str, torch.Tensor]


class Encoder(NamedTuple):
  """All tensors of an encoder under fairseq's names, and the sizes that shapes do not show."""

  tensors: Tensors
  num_heads: int
  layer_norm_eps: float
  relative_position: str  # 'official', 'none'
  relative_max_distance: int


# {name in the official Hugging Face port: fairseq's name}, replaced in this order.
_PORT = {
  "encoder.layer.": "layers.",
  "attention.LayerNorm": "self_attn_layer_norm",
  "attention.self_attn": "self_attn",
  "intermediate.dense": "fc1",
  "output.dense": "fc2",
  "output.LayerNorm": "final_layer_norm",
  "embeddings.word_embeddings": "embed_tokens",
  "embeddings.position_embeddings": "embed_positions",
  "embeddings.LayerNorm": "emb_layer_norm",
}
_RELATIVE = "relative_attention_bias.weight"
_SEGMENT = "embeddings.token_type_embeddings.weight"


def from_fairseq(state: Tensors, arguments) -> Encoder:
  """Builds the main encoder from `model` and `args` of a fairseq `model.pt`."""
  prefix = "encoder.sentence_encoder."
  tensors = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
  return Encoder(
    tensors,
    num_heads=arguments.encoder_attention_heads,
    layer_norm_eps=1e-5,  # fixed in fairseq's LayerNorm
    relative_position="official" if arguments.rel_pos else "none",
    relative_max_distance=arguments.max_rel_pos,
  )


def from_hugging_face(state: Tensors, config: dict) -> Encoder:
  """Builds the encoder of an official Hugging Face checkpoint; `config` is its config.json."""
  tensors = {}
  for name, value in state.items():
    name = name.removeprefix("cocolm.").removeprefix("amos.")
    for port, fairseq in _PORT.items():
      name = name.replace(port, fairseq)
    tensors[name] = value
  return Encoder(
    tensors,
    num_heads=config["num_attention_heads"],
    layer_norm_eps=config["layer_norm_eps"],
    relative_position="official" if config["rel_pos_bins"] else "none",
    relative_max_distance=config["max_rel_pos"],
  )


def hidden_states(encoder: Encoder, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
  """Computes last hidden states, [batch, length, embed] in the tensors' dtype.

  `ids` is int64 [batch, length]; `mask` is [batch, length], 0 at padding, and every row has a token.

  Source: official transformer_sentence_encoder.py and transformer_sentence_encoder_layer.py, evaluation.
  """
  tensors = encoder.tensors

  def norm(x: torch.Tensor, name: str) -> torch.Tensor:
    weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    return F.layer_norm(x, x.shape[-1:], weight, bias, encoder.layer_norm_eps)

  def linear(x: torch.Tensor, name: str) -> torch.Tensor:
    return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

  batch, length = ids.shape
  positions = tensors["embed_positions.weight"]
  x = tensors["embed_tokens.weight"][ids] + positions[:length]
  if _SEGMENT in tensors:
    x = x + tensors[_SEGMENT][0]
  x = norm(x, "emb_layer_norm") * mask[..., None].to(x.dtype)
  bias = torch.zeros(batch, 1, 1, length, dtype=x.dtype).masked_fill(mask[:, None, None] == 0, -math.inf)
  if encoder.relative_position != "none":
    table = tensors[_RELATIVE]
    sizes = {"num_buckets": len(table), "max_distance": encoder.relative_max_distance}
    buckets = official_buckets(length, max_length=len(positions), **sizes)
    bias = bias + table[torch.from_numpy(buckets.astype(np.int64))].permute(2, 0, 1)
  depth = sum(name.endswith(".fc1.weight") for name in tensors)
  for layer in (f"layers.{number}" for number in range(depth)):
    qkv = linear(x, f"{layer}.self_attn.in_proj").view(batch, length, 3, encoder.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
    attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    x = norm(x + linear(attended, f"{layer}.self_attn.out_proj"), f"{layer}.self_attn_layer_norm")
    x = norm(x + linear(F.gelu(linear(x, f"{layer}.fc1")), f"{layer}.fc2"), f"{layer}.final_layer_norm")
  return x
