"""The encoder in plain PyTorch, for the layouts that no installed class reads: official ones and our own.

It is written from the definition of the official models and reads their tensors by name, without the
name tables of the export, so that a wrong row there shows as a difference of hidden states. Functions of a
state dict; nothing here is trained. Needs the export extra.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from pretrain.models.relative_position import official_buckets, t5_buckets

Tensors = dict[str, torch.Tensor]


class Linear(NamedTuple):
  """Weight [out, in] and bias [out]; of a LayerNorm: scale and bias."""

  weight: torch.Tensor
  bias: torch.Tensor


class Layer(NamedTuple):
  """One post-LN layer; query, key and value lie on top of each other as [3 embed, embed]."""

  qkv: Linear
  output: Linear
  attention_norm: Linear
  up: Linear
  down: Linear
  mlp_norm: Linear


class Encoder(NamedTuple):
  """All tensors of an encoder, and the sizes that no shape tells."""

  token: torch.Tensor  # [vocab, embed]
  position: torch.Tensor  # [positions, embed]
  segment: torch.Tensor | None  # [embed], of segment 0
  norm: Linear
  layers: list[Layer]
  relative: torch.Tensor | None  # [buckets, heads]
  num_heads: int
  layer_norm_eps: float
  relative_position: str  # 'official', 't5', 'none'
  relative_max_distance: int


# Name of each tensor in the two official layouts; {} is the layer.
_FAIRSEQ = {
  "token": "embed_tokens.weight",
  "position": "embed_positions.weight",
  "norm": "emb_layer_norm",
  "qkv": "layers.{}.self_attn.in_proj",
  "output": "layers.{}.self_attn.out_proj",
  "attention_norm": "layers.{}.self_attn_layer_norm",
  "up": "layers.{}.fc1",
  "down": "layers.{}.fc2",
  "mlp_norm": "layers.{}.final_layer_norm",
}
_HUGGING_FACE = {
  "token": "embeddings.word_embeddings.weight",
  "position": "embeddings.position_embeddings.weight",
  "norm": "embeddings.LayerNorm",
  "qkv": "encoder.layer.{}.attention.self_attn.in_proj",
  "output": "encoder.layer.{}.attention.self_attn.out_proj",
  "attention_norm": "encoder.layer.{}.attention.LayerNorm",
  "up": "encoder.layer.{}.intermediate.dense",
  "down": "encoder.layer.{}.output.dense",
  "mlp_norm": "encoder.layer.{}.output.LayerNorm",
}
_RELATIVE = "relative_attention_bias.weight"
_SEGMENT = "embeddings.token_type_embeddings.weight"


def from_fairseq(state: Tensors, arguments) -> Encoder:
  """The main encoder of a fairseq `model.pt`, from its `model` and `args`."""
  prefix = "encoder.sentence_encoder."
  own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
  return _official(
    own,
    _FAIRSEQ,
    num_heads=arguments.encoder_attention_heads,
    layer_norm_eps=1e-5,  # fairseq's LayerNorm has no other
    max_distance=arguments.max_rel_pos if arguments.rel_pos else 0,
  )


def from_hugging_face(state: Tensors, config: dict) -> Encoder:
  """The encoder of an official Hugging Face checkpoint; `config` is its config.json."""
  own = {name.removeprefix("cocolm.").removeprefix("amos."): value for name, value in state.items()}
  return _official(
    own,
    _HUGGING_FACE,
    num_heads=config["num_attention_heads"],
    layer_norm_eps=config["layer_norm_eps"],
    max_distance=config["max_rel_pos"] if config["rel_pos_bins"] else 0,
  )


def _official(
  state: Tensors, names: dict[str, str], *, num_heads: int, layer_norm_eps: float, max_distance: int
) -> Encoder:
  def linear(name: str) -> Linear:
    return Linear(state[f"{name}.weight"], state[f"{name}.bias"])

  depth = 0
  while names["up"].format(depth) + ".weight" in state:
    depth += 1
  layers = [
    Layer(**{field: linear(names[field].format(number)) for field in Layer._fields})
    for number in range(depth)
  ]
  relative = state.get(_RELATIVE) if max_distance else None
  segment = state.get(_SEGMENT)
  return Encoder(
    token=state[names["token"]],
    position=state[names["position"]],
    segment=None if segment is None else segment[0],
    norm=linear(names["norm"]),
    layers=layers,
    relative=relative,
    num_heads=num_heads,
    layer_norm_eps=layer_norm_eps,
    relative_position="none" if relative is None else "official",
    relative_max_distance=max_distance,
  )


def from_own(state: Tensors, config: dict) -> Encoder:
  """The encoder of a `--to=torch` folder, from {our path: tensor} and `model` in its config.json.

  Kernels are [in, out] and layers are stacked.
  """

  def stacked(path: str, number: int) -> torch.Tensor:
    return state[f"encoder/trunk/layers/{path}"][number]

  def dense(name: str, number: int) -> Linear:
    return Linear(stacked(f"{name}/kernel", number).T, stacked(f"{name}/bias", number))

  def norm(name: str, number: int) -> Linear:
    return Linear(stacked(f"{name}/scale", number), stacked(f"{name}/bias", number))

  def layer(number: int) -> Layer:
    kernels = [stacked(f"attention/{part}/kernel", number) for part in ("query", "key", "value")]
    biases = [stacked(f"attention/{part}/bias", number) for part in ("query", "key", "value")]
    output = stacked("attention/output/kernel", number)
    return Layer(
      qkv=Linear(
        torch.cat([kernel.flatten(1).T for kernel in kernels]), torch.cat([bias.flatten() for bias in biases])
      ),
      output=Linear(output.flatten(0, 1).T, stacked("attention/output/bias", number)),
      attention_norm=norm("attention_norm", number),
      up=dense("up", number),
      down=dense("down", number),
      mlp_norm=norm("mlp_norm", number),
    )

  base = "encoder/embeddings/"
  segment = state.get(f"{base}segment/embedding")
  return Encoder(
    token=state[f"{base}token/embedding"],
    position=state[f"{base}position/embedding"],
    segment=None if segment is None else segment[0],
    norm=Linear(state[f"{base}norm/scale"], state[f"{base}norm/bias"]),
    layers=[layer(number) for number in range(config["num_layers"])],
    relative=state.get("encoder/trunk/relative_position/embedding"),
    num_heads=config["num_heads"],
    layer_norm_eps=config["layer_norm_eps"],
    relative_position=config["relative_position"],
    relative_max_distance=config["relative_max_distance"],
  )


def _bias(encoder: Encoder, length: int) -> torch.Tensor | None:
  """[heads, length, length], added to the scores of every layer."""
  if encoder.relative is None:
    return None
  sizes = {"num_buckets": encoder.relative.shape[0], "max_distance": encoder.relative_max_distance}
  if encoder.relative_position == "t5":
    buckets = t5_buckets(length, **sizes)
  else:
    buckets = official_buckets(length, max_length=encoder.position.shape[0], **sizes)
  return encoder.relative[torch.from_numpy(buckets.astype(np.int64))].permute(2, 0, 1)


def hidden_states(encoder: Encoder, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
  """Last hidden states, [batch, length, embed] of the tensors' dtype.

  From ids [batch, length] int64 and a mask [batch, length], 0 at padding; every row has a token.

  Source: official transformer_sentence_encoder.py and transformer_sentence_encoder_layer.py, evaluation.
  """

  def norm(x: torch.Tensor, part: Linear) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], part.weight, part.bias, encoder.layer_norm_eps)

  batch, length = ids.shape
  x = encoder.token[ids] + encoder.position[:length]
  if encoder.segment is not None:
    x = x + encoder.segment
  x = norm(x, encoder.norm) * mask[..., None].to(x.dtype)
  scores_bias = torch.zeros(batch, 1, 1, length, dtype=x.dtype).masked_fill(
    mask[:, None, None] == 0, -math.inf
  )
  relative = _bias(encoder, length)
  if relative is not None:
    scores_bias = scores_bias + relative
  for layer in encoder.layers:
    qkv = F.linear(x, *layer.qkv).view(batch, length, 3, encoder.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + scores_bias
    attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    x = norm(x + F.linear(attended, *layer.output), layer.attention_norm)
    x = norm(x + F.linear(F.gelu(F.linear(x, *layer.up)), *layer.down), layer.mlp_norm)
  return x
