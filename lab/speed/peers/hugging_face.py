"""Hugging Face's classes at the same work, used in the common way, with scores for every position."""

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from lab.speed.peers.encoder import gumbel, take


def _fields(config, width: int, heads: int) -> dict:
  model = config.model
  return {
    "vocab_size": model.vocab_size,
    "hidden_size": width,
    "num_hidden_layers": model.num_layers,
    "num_attention_heads": heads,
    "intermediate_size": 4 * width,
    "max_position_embeddings": max(512, config.data.length),
    "hidden_dropout_prob": model.dropout,
    "attention_probs_dropout_prob": model.attention_dropout,
    "attn_implementation": "sdpa",
  }


class Bert(nn.Module):
  """Hugging Face's BertForMaskedLM with a loss at masked tokens, for comparison."""

  def __init__(self, config) -> None:
    super().__init__()
    self.model = BertForMaskedLM(
      BertConfig(**_fields(config, config.model.hidden_size, config.model.num_heads))
    )

  def forward(self, batch: dict) -> torch.Tensor:
    return self.model(input_ids=batch["masked"], labels=batch["sparse_labels"]).loss


class Electra(nn.Module):
  """Hugging Face's ELECTRA for comparison: a generator of a third of the width, with tied token tables."""

  def __init__(self, config) -> None:
    super().__init__()
    width = config.model.hidden_size
    narrow = max(64, width // 3 // 64 * 64)
    table = {"embedding_size": width}
    self.generator = ElectraForMaskedLM(ElectraConfig(**_fields(config, narrow, narrow // 64), **table))
    self.model = ElectraForPreTraining(
      ElectraConfig(**_fields(config, width, config.model.num_heads), **table)
    )
    self.generator.electra.embeddings = self.model.electra.embeddings
    self.generator.tie_weights()

  def forward(self, batch: dict) -> torch.Tensor:
    made = self.generator(input_ids=batch["masked"], labels=batch["sparse_labels"])
    with torch.no_grad():
      scores = take(made.logits, batch["places"])
      ids = batch["ids"].scatter(1, batch["places"], (scores.float() + gumbel(scores)).argmax(-1))
    return made.loss + 50 * self.model(input_ids=ids, labels=(ids != batch["ids"]).long()).loss


def build(config) -> nn.Module:
  """Returns Hugging Face's model that does the work of a masked-LM or RTD recipe."""
  return Electra(config) if config.corruption.kind == "generator" else Bert(config)
