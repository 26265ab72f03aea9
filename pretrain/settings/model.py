"""Types, choices and limits of the fields under `model`, `corruption` and `generator`. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pretrain.settings.field_types import (
  Count,
  CountOrZero,
  Fraction,
  FractionBelowOne,
  Limit,
  NotNegative,
  Positive,
)

Dtype = Literal["float32", "bfloat16", "auto"]
Remat = Literal["none", "cheap", "full"]


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
  """Sizes and options of one Transformer encoder: the pretrained encoder, or a generator's trunk."""

  vocab_size: Annotated[int, Limit(6)]  # five special tokens and one other
  hidden_size: Count
  num_layers: Count
  num_heads: Count
  mlp_size: Count
  max_length: Annotated[int, Limit(3)]
  embedding_size: CountOrZero = 0
  num_kv_heads: CountOrZero = 0
  num_segments: CountOrZero = 0
  pair_segments: bool = False
  relative_position: Literal["t5", "official", "none"] = "t5"
  relative_buckets: Annotated[int, Limit(4)] = 32
  relative_max_distance: Count = 128
  position: Literal["learned", "rope", "none"] = "learned"
  rope_theta: Positive = 160_000.0
  rope_theta_local: Positive = 10_000.0
  window: Count = 128
  global_every: Count = 1
  global_layers: tuple[int, ...] = ()
  norm_placement: Literal["post", "pre"] = "post"
  norm: Literal["layernorm", "rmsnorm"] = "layernorm"
  norm_bias: bool = True
  embedding_norm: bool = True
  layer_norm_eps: Positive = 1e-5
  mlp: Literal["plain", "gated"] = "plain"
  activation: Literal["gelu", "silu"] = "gelu"
  attention_bias: bool = True
  mlp_bias: bool = True
  dropout: FractionBelowOne = 0.1
  dropout_at: Literal["all", "attention"] = "all"
  attention_dropout: FractionBelowOne = 0.1
  init_stddev: Positive = 0.02
  init: Literal["normal", "megatron_cut"] = "normal"
  dtype: Dtype = "float32"
  attention: Literal["auto", "plain", "by_rows", "pallas_tpu", "cudnn", "triton"] = "auto"
  remat: Remat = "none"
  scan_unroll: CountOrZero = 0

  def __post_init__(self):
    object.__setattr__(self, "global_layers", tuple(self.global_layers))  # JSON has lists

  @property
  def token_size(self) -> int:
    """Width of the tables of embeddings; a projection follows where it is not `hidden_size`."""
    return self.embedding_size or self.hidden_size

  @property
  def kv_heads(self) -> int:
    """Heads of keys and values, each read by `num_heads / kv_heads` heads of queries."""
    return self.num_kv_heads or self.num_heads

  def is_global(self, layer: int) -> bool:
    """Whether `layer`, from 0, reads keys at any distance; the others read those in `window`."""
    return layer in self.global_layers if self.global_layers else layer % self.global_every == 0

  @property
  def has_windows(self) -> bool:
    """Whether any layer reads only the keys in `window`."""
    return not all(map(self.is_global, range(self.num_layers)))

  @property
  def period(self) -> int:
    """The number of layers after which their kinds, global or not, repeat."""
    kinds = [self.is_global(layer) for layer in range(self.num_layers)]
    repeats = (n for n in range(1, len(kinds)) if kinds[n:] == kinds[:-n])
    return next(repeats, max(1, len(kinds)))


# Fields under `model` that configure the token table of a run, not an encoder.
TABLE_FIELDS: Mapping[str, Any] = {
  "vocab_chunk_rows": Count,
  "freeze_embeddings": Literal["none", "random", "checkpoint"],
  "freeze_embeddings_from": str,
}


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
