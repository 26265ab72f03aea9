"""Builds a `Recipe` from the config's fields, and resolves their strings and zeros."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from data.errors import ConfigError
from pretrain.corruption.generator import GeneratorConfig
from pretrain.corruption.masking import MaskingSettings, TokenIds
from pretrain.models.layers import EncoderConfig, encoder_config
from pretrain.objectives.contrast import SequenceContrastLoss, TokenAlignmentLoss
from pretrain.objectives.tokens import (
  AllTokenLMLoss,
  CorrectiveLMLoss,
  MaskedAutoencoderLoss,
  MaskedLMLoss,
  ReplacedTokenDetectionLoss,
)
from pretrain.recipe import Recipe
from pretrain.settings.model import GeneratorSettings
from pretrain.settings.objectives import switched_on

# Each is derived from its fields and facts in `pretrain/settings/objectives.py`, which imports no jax.
# It adds `init`, `totals` and `__call__`.
LOSSES = {
  "mlm": MaskedLMLoss,
  "rtd": ReplacedTokenDetectionLoss,
  "clm": CorrectiveLMLoss,
  "all_token": AllTokenLMLoss,
  "scl": SequenceContrastLoss,
  "taco": TokenAlignmentLoss,
  "mae": MaskedAutoencoderLoss,
}


def build(config: ConfigDict, tokens: TokenIds, *, rows_per_device: int = 1) -> Recipe:
  """Builds a `Recipe`, the functions that mask a batch and compute its loss, from a validated config.

  `rows_per_device` of a microbatch, with `model.vocab_chunk_rows`, limits the positions of a row that have
  vocabulary logits at once.

  Raises:
    ConfigError: a token id outside the table.
  """
  if tokens.vocab_size > config.model.vocab_size:
    raise ConfigError(
      f"model.vocab_size: the table has {config.model.vocab_size} rows but the vocabulary has "
      f"{tokens.vocab_size} tokens; use a smaller vocabulary or\n"
      f"  --config.model.vocab_size={tokens.vocab_size}"
    )
  chunk = max(1, config.model.vocab_chunk_rows // max(1, rows_per_device))
  switched = switched_on(config.objectives.to_dict())
  objectives = {name: LOSSES[name](**vars(facts)) for name, facts in switched.items()}
  has_generator = config.corruption.kind == "generator"
  # Blocks of pretraining have [SEP] between the texts of one segment.
  encoder = encoder_config(config.model.to_dict(), pair_segments=False)
  return Recipe(
    encoder=encoder,
    masking=MaskingSettings(**config.corruption.to_dict()),
    generator=generator_config(GeneratorSettings(**config.generator), encoder) if has_generator else None,
    objectives=objectives,
    tokens=tokens,
    chunk=chunk,
    freeze_token_table=config.model.freeze_embeddings != "none",
    has_segments=config.data.packing == "segments",
  )


def generator_config(settings: GeneratorSettings, encoder: EncoderConfig) -> GeneratorConfig:
  """Returns the generator's config; sizes that its settings leave open are the encoder's."""
  num_heads, group = settings.num_heads or encoder.num_heads, encoder.num_heads // encoder.kv_heads
  dropout_free = {"dropout": 0.0, "attention_dropout": 0.0} if settings.sampling_dropout == "zero" else {}
  trunk = dataclasses.replace(
    encoder,
    embedding_size=0,  # its own projection follows the table, whose width is `token_size`
    num_layers=settings.num_layers,
    hidden_size=settings.hidden_size or encoder.hidden_size,
    mlp_size=settings.mlp_size or encoder.mlp_size,
    num_heads=num_heads,
    num_kv_heads=num_heads // group if encoder.num_kv_heads and num_heads % group == 0 else 0,
    **dropout_free,
  )
  depths = settings.separate_layers
  members = tuple(dataclasses.replace(trunk, num_layers=depth) for depth in depths) or (trunk,)
  fields: dict[str, Any] = vars(settings) | {
    "mlm_layers": depths or settings.mlm_layers or (settings.num_layers,)
  }
  if settings.frozen:
    fields["share_embeddings"] = "none"
  token_size = trunk.hidden_size if settings.projection == "none" else encoder.token_size
  return GeneratorConfig(members=members, token_size=token_size, **fields)
