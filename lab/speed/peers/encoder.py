"""A post-LN encoder in plain PyTorch with fused attention, and the heads of the methods."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def t5_buckets(length: int, buckets: int = 32, max_distance: int = 128) -> torch.Tensor:
  """Returns T5's bucket of each (query, key) distance, by direction: [length, length] int64."""
  distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
  half, exact = buckets // 2, buckets // 4
  size = distance.abs()
  far = torch.log(size.clamp(min=1) / exact) / math.log(max_distance / exact) * (half - exact)
  far = (exact + far.long()).clamp(max=half - 1)
  return (distance > 0).long() * half + torch.where(size < exact, size, far)


class Layer(nn.Module):
  """x = LN(x + attention(x)); x = LN(x + mlp(x)), with dropout on both branches."""

  def __init__(self, width: int, heads: int, mlp: int) -> None:
    super().__init__()
    self.heads = heads
    self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.up, self.down = nn.Linear(width, mlp), nn.Linear(mlp, width)
    self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)

  def forward(self, x: torch.Tensor, bias: torch.Tensor | None, dropout: float) -> torch.Tensor:
    rows, length, width = x.shape
    parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
    query, key, value = parts.unbind(0)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
    attended = self.output(attended.transpose(1, 2).reshape(rows, length, width))
    x = self.first_norm(x + F.dropout(attended, dropout))
    return self.second_norm(x + F.dropout(self.down(F.gelu(self.up(x))), dropout))


class Encoder(nn.Module):
  """Layers over token vectors and positions; with `has_bias` all layers share a relative-position bias."""

  buckets: torch.Tensor

  def __init__(
    self, width: int, heads: int, mlp: int, layers: int, *, length: int, dropout: float, has_bias: bool
  ) -> None:
    super().__init__()
    self.layers = nn.ModuleList(Layer(width, heads, mlp) for _ in range(layers))
    self.relative = nn.Embedding(32, heads) if has_bias else None
    self.position = nn.Embedding(length, width)
    self.norm, self.dropout = nn.LayerNorm(width), dropout
    self.register_buffer("buckets", t5_buckets(length))

  def forward(
    self, vectors: torch.Tensor, *, taps: tuple[int, ...] = (), dropout: float | None = None
  ) -> list[torch.Tensor]:
    """Returns the last layer's output, or those of layers `taps` (from 1), with gradients cut in between."""
    dropout, length = self.dropout if dropout is None else dropout, vectors.shape[1]
    x = F.dropout(self.norm(vectors + self.position.weight[:length]), dropout)
    bias = None
    if self.relative is not None:
      bias = self.relative(self.buckets[:length, :length]).permute(2, 0, 1)[None].to(x.dtype)
    tapped = []
    for number, layer in enumerate(self.layers, 1):
      x = layer(x, bias, dropout)
      if number in taps:
        tapped.append(x)
        x = x.detach()
    return tapped if taps else [x]


class Transform(nn.Module):
  """Dense, GELU, LayerNorm: the transform before vocabulary scores."""

  def __init__(self, width: int) -> None:
    super().__init__()
    self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.norm(F.gelu(self.dense(x)))


class LookedUp(torch.autograd.Function):
  """Looks up the row with the largest score; the scores get the gradient of scores @ table."""

  @staticmethod
  def forward(ctx, scores: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    chosen = scores.argmax(-1)
    ctx.save_for_backward(chosen, table)
    return table[chosen]

  @staticmethod
  def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen, table = ctx.saved_tensors
    flat = grad.reshape(-1, grad.shape[-1])
    return grad @ table.t(), torch.zeros_like(table).index_add_(0, chosen.reshape(-1), flat)


class Reversed(torch.autograd.Function):
  """The identity with a reversed gradient."""

  @staticmethod
  def forward(ctx, x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)

  @staticmethod
  def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
    return -grad


def take(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
  """Returns the vectors of x [rows, length, width] at `places` [rows, places]: [rows, places, width]."""
  return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def gumbel(like: torch.Tensor) -> torch.Tensor:
  """Returns float32 standard Gumbel noise in the shape of a tensor."""
  return -torch.empty_like(like, dtype=torch.float32).exponential_().log()
