"""Stock ModernBERT of transformers, the reference for a modern backbone."""

import torch
from torch import nn
from transformers import ModernBertConfig, ModernBertForMaskedLM


class ModernBert(nn.Module):
  """ModernBertForMaskedLM of base size, or of the recipe's sizes if that is narrower.

  It scores the positions with labels alone, as ours does.
  """

  def __init__(self, config) -> None:
    super().__init__()
    model, sizes = config.model, {"sparse_prediction": True}
    if model.hidden_size < 768:
      special = {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "cls_token_id": 0,
        "sep_token_id": 2,
      }
      sizes |= special | {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": 2 * model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
      }
    self.model = ModernBertForMaskedLM(ModernBertConfig(**sizes, attn_implementation="sdpa"))  # pyright: ignore[reportCallIssue] (its `**kwargs` take it)

  def forward(self, batch: dict) -> torch.Tensor:
    ids, labels = batch["masked"], batch["sparse_labels"]
    return self.model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss


def build(config) -> nn.Module:
  """Returns ModernBERT with masked LM; `corruption.mask_rate` is the fraction of positions with labels."""
  return ModernBert(config)
