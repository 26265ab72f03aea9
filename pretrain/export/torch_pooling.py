"""Pools hidden states in PyTorch as an embedding model's schema says: for ONNX and the self-check."""

import torch

from pretrain.embed.schema import EmbeddingSchema


def vectors(hidden: torch.Tensor, mask: torch.Tensor, schema: EmbeddingSchema) -> torch.Tensor:
  """Computes vectors [batch, embed] from hidden states [batch, length, embed] and a mask [batch, length].

  Padding, 0 in the mask, may be on either side.
  """
  is_token = mask.to(hidden.dtype)
  if schema.pooling == "mean":
    pooled = (hidden * is_token[..., None]).sum(1) / is_token.sum(1, keepdim=True).clamp(min=1)
  else:
    numbers = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=hidden.dtype)
    ranks = is_token * (numbers if schema.pooling == "last" else 1 / numbers)
    where = ranks.argmax(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    pooled = hidden.gather(1, where).squeeze(1)
  return torch.nn.functional.normalize(pooled, dim=-1) if schema.unit else pooled
