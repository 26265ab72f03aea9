"""Types, choices and limits of the fields under `corruption` and `generator`. Imports no jax."""

import dataclasses
from typing import Annotated, Literal

from pretrain.settings.field_types import (
  Count,
  CountOrZero,
  Fraction,
  FractionBelowOne,
  Limit,
  NotNegative,
  Positive,
)

Stages = tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
  """Fields under `corruption`: how tokens are selected, and how the selected tokens are replaced."""

  kind: Literal["mask", "random", "generator"]
  mask_rule: Literal["count", "bernoulli", "electra_google", "deberta"]
  mask_rate: Annotated[float, Limit(0, 1, low_open=True, high_open=True)]
  mask_special: Literal["all", "sep_only", "none"]
  mask_token_rate: Fraction
  random_token_rate: Fraction
  random_token_from: Literal["non_special", "all"]
  mask_rates: Stages = ()
  eval_mask_rate: FractionBelowOne = 0.0
  whole_words: bool = False

  @property
  def rates(self) -> tuple[float, ...]:
    """The mask rates of the stages of a run."""
    return tuple(rate for _, rate in self.mask_rates) or (self.mask_rate,)

  @property
  def in_evaluation(self) -> "MaskingSettings":
    """The settings for held-out rows."""
    if not self.eval_mask_rate:
      return self
    return dataclasses.replace(self, mask_rate=self.eval_mask_rate, mask_rates=())


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
  """Fields under `generator`: its sizes, heads and sampling; a size of 0 means the encoder's size."""

  num_layers: Count
  hidden_size: CountOrZero
  mlp_size: CountOrZero
  num_heads: CountOrZero
  mlm_layers: tuple[int, ...]
  separate_layers: tuple[int, ...]
  share_embeddings: Literal["tokens", "all", "none", "gdes"]
  projection: Literal["table", "embeddings", "none"]
  sampling_dropout: Literal["eval", "train", "zero"]
  temperature: Positive
  temperature_start: NotNegative
  temperature_decay: NotNegative
  disallow_correct: bool
  detach_blocks: bool
  mixture: Literal["none", "adversarial", "uniform", "random_layer", "schedule", "fixed"]
  mixture_weights: tuple[float, ...]
  gumbel_temperature: Positive
  reversal_multiplier: float
  adv_mlm_multiplier: float
  loss_weight: NotNegative
  init_from: str
  frozen: bool

  @property
  def has_table(self) -> bool:
    """Whether the generator has a token table of its own."""
    return self.frozen or self.share_embeddings in ("none", "gdes")
