"""Types, limits and rules of the fields under `model`, `corruption` and `generator`. Imports no jax."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from pretrain.settings.fields import (
  Count,
  CountOrZero,
  Fraction,
  FractionBelowOne,
  Limit,
  NotNegative,
  Pairs,
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
  relative_position: Literal["t5", "official", "disentangled", "none"] = "t5"
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
  attention: Literal["auto", "plain", "by_rows", "pallas_tpu", "triton"] = "auto"
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
  mask_rates: Pairs = ()
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


def model_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about the encoder's fields; see `fields.Schema.check`."""
  model, layers = config.model, list(config.model.global_layers)
  if model.hidden_size % model.num_heads:
    yield "model.hidden_size model.num_heads: the width must be divisible by the heads"
  if model.num_kv_heads and model.num_heads % model.num_kv_heads:
    yield "model.num_kv_heads model.num_heads: expected a divisor of the heads"
  if model.pair_segments and model.num_segments < 2:
    yield "model.pair_segments model.num_segments: expected 2 segments at least"
  if config.data.length > model.max_length:
    longer = f"--config.model.max_length={config.data.length}"
    yield f"data.length model.max_length: longer than the position table; shorten it or use\n  {longer}"
  both = "model.position model.relative_position"
  is_rotary, has_bias = model.position == "rope", model.relative_position != "none"
  if is_rotary and has_bias:
    yield f"{both}: both give relative positions\n  --config.model.relative_position=none"
  if model.position == "none" and not has_bias:
    yield f"{both}: the encoder would not know the order of tokens\n  --config.model.position=rope"
  if is_rotary and model.hidden_size // model.num_heads % 2:
    yield f"model.hidden_size model.num_heads: {_ROTARY}"
  if has_bias and model.relative_buckets % 2:
    yield "model.relative_buckets: expected an even number, half for each direction"
  if model.relative_position == "disentangled":
    yield from _disentangled_rules(model)
  # A quarter of the buckets are single distances; the logarithmic ones need larger distances.
  single = model.relative_buckets // 4 + 1
  if has_bias and model.relative_max_distance <= single:
    yield f"model.relative_max_distance model.relative_buckets: expected a distance above {single}"
  if model.norm == "rmsnorm" and model.norm_bias:
    yield "model.norm model.norm_bias: RMSNorm has no bias\n  --config.model.norm_bias=false"
  if model.norm_placement == "post" and not model.embedding_norm:
    yield "model.embedding_norm model.norm_placement: only a pre-norm encoder can do without this norm"
  if layers != sorted({*layers} & {*range(model.num_layers)}):
    yield "model.global_layers model.num_layers: expected ascending numbers of layers, from 0"
  if layers and model.global_every != 1:
    yield "model.global_layers model.global_every: expected one of them"
  if (model.freeze_embeddings == "checkpoint") != bool(model.freeze_embeddings_from):
    yield "model.freeze_embeddings model.freeze_embeddings_from: 'checkpoint' needs a directory; set both"


def _disentangled_rules(model: ConfigDict) -> Iterator[str]:
  kernels, both = ("by_rows", "pallas_tpu", "triton"), "model.relative_position model."
  if model.attention in kernels:
    yield f"{both}attention: it has no disentangled scores\n  --config.model.attention=auto"
  if model.global_every != 1 or model.global_layers:
    yield f"{both}global_every model.global_layers: disentangled attention has no windows"
  if model.num_kv_heads not in (0, model.num_heads):
    yield f"{both}num_kv_heads: disentangled attention has as many\n  --config.model.num_kv_heads=0"


_ROTARY = "rotary positions turn pairs of numbers; expected heads of an even width"


def corruption_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about how tokens are chosen and replaced."""
  given = config.corruption
  masked, random, rates = given.mask_token_rate, given.random_token_rate, given.mask_rates
  both = "corruption.mask_token_rate corruption.random_token_rate"
  if masked + random > 1 + 1e-9:
    yield f"{both}: these fractions of the chosen tokens add up to more than 1"
  starts = [start for start, _ in rates]
  if rates and (starts[0] != 0 or starts != sorted({*starts}) or starts[-1] >= 1):
    yield "corruption.mask_rates: expected ascending fractions of the run, from 0 and below 1"
  if any(not 0 < rate < 1 for _, rate in rates):
    yield "corruption.mask_rates: expected rates in (0, 1)"
  rule, is_google = "corruption.mask_rule: this rule", given.mask_rule == "electra_google"
  if rates and given.mask_rule in ("electra_google", "deberta"):
    yield f"corruption.mask_rates {rule} has one rate\n  --config.corruption.mask_rates="
  if given.whole_words and given.mask_rule in ("electra_google", "deberta"):
    yield f"corruption.whole_words {rule} chooses single tokens\n  --config.corruption.mask_rule=count"
  if is_google and random > 0:
    yield f"corruption.random_token_rate {rule} inserts no random tokens; use 0.0, or mask_rule 'count'"
  # Google's ELECTRA leaves 15 % of the chosen tokens unchanged, and the generator predicts them too.
  keeps_some = masked < 1 and not (given.kind == "generator" and is_google)
  if given.kind != "mask" and (random > 0 or keeps_some):
    yield f"{both} corruption.kind: only 'mask' mixes masks, random and unchanged tokens; use 1.0 and 0.0"


def generator_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about the generator's fields, also that they have no effect without one."""
  model, given = config.model, config.generator
  if config.corruption.kind != "generator":
    if given.init_from or given.frozen:
      name = "generator.init_from" if given.init_from else "generator.frozen"
      yield f"{name} corruption.kind: this run has no generator; use corruption.kind 'generator'"
    return
  width, heads = given.hidden_size or model.hidden_size, given.num_heads or model.num_heads
  sizes = "generator.hidden_size generator.num_heads model.hidden_size model.num_heads"
  if width % heads:
    yield f"{sizes}: {heads} heads must divide the generator's width {width} (0: as model)"
  if model.position == "rope" and width // heads % 2:
    yield f"{sizes}: {_ROTARY}"
  sharing, is_narrow = given.share_embeddings, width != (model.embedding_size or model.hidden_size)
  own_table = "\n  --config.generator.share_embeddings=none"
  names = "generator.hidden_size generator.share_embeddings generator.projection"
  if is_narrow and not given.frozen and sharing == "all" and given.projection == "table":
    yield f"{names}: the encoder's positions have another width; use 'tokens', or projection 'embeddings'"
  if is_narrow and not given.frozen and sharing != "none" and given.projection == "none":
    yield f"{names}: needs its own token table{own_table}"
  if given.frozen and not given.init_from:
    directory = "--config.generator.init_from=DIRECTORY"
    yield f"generator.frozen generator.init_from: not trained, so it must be loaded\n  {directory}"
  if bool(given.temperature_start) != bool(given.temperature_decay):
    yield (
      "generator.temperature_start generator.temperature_decay: a temperature that changes needs both\n"
      "  --config.generator.temperature_start=2.0 --config.generator.temperature_decay=0.1"
    )
  if given.loss_weight == 0 and not given.frozen:
    yield "generator.loss_weight generator.frozen: not trained; set a weight, or freeze a trained generator"
  if sharing == "gdes" and given.frozen:
    yield f"generator.share_embeddings generator.frozen: no gradient to keep apart{own_table}"
  if sharing == "gdes" and (given.separate_layers or model.freeze_embeddings != "none"):
    names = "generator.share_embeddings generator.separate_layers model.freeze_embeddings"
    yield f"{names}: the encoder trains a difference to one generator's token table{own_table}"
  yield from _head_rules(config)


def _head_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about a generator's heads and their mixture."""
  given = config.generator
  layers, separate, depth = given.mlm_layers, given.separate_layers, given.num_layers
  both = "generator.mlm_layers generator.separate_layers"
  if layers and separate:
    yield f"{both}: heads are on one trunk or on separate trunks; set one of the fields to ()"
  if list(layers) != sorted({*layers}) or (layers and not 1 <= layers[0] <= layers[-1] == depth):
    names = "generator.mlm_layers generator.num_layers"
    yield f"{names}: expected ascending layers, the last one {depth}: layers above it would not be used"
  if separate and (len(separate) < 2 or min(separate) < 1):
    yield "generator.separate_layers: expected depths of two or more generators, each at least 1"
  if separate and (given.frozen or given.share_embeddings == "none"):
    yield (
      "generator.separate_layers generator.share_embeddings generator.frozen: they read the encoder's table\n"
      "  --config.generator.share_embeddings=tokens --config.generator.frozen=false"
    )
  heads, mixture = len(separate) or len(layers) or 1, given.mixture
  if (mixture == "none") != (heads < 2):
    yield f"generator.mixture {both}: several heads need a mixture, a mixture two or more heads"
  weights, both = given.mixture_weights, "generator.mixture generator.mixture_weights"
  if mixture != "fixed" and weights:
    yield f"{both}: only mixture 'fixed' has weights; use it, or ()"
  is_wrong = len(weights) != heads or min(weights, default=0) < 0 or abs(sum(weights) - 1) > 1e-6
  if mixture == "fixed" and is_wrong:
    yield f"{both}: expected {heads} weights, none negative, that add up to 1"
  if mixture != "adversarial":
    if given.adv_mlm_multiplier:
      names = "generator.adv_mlm_multiplier generator.mixture"
      yield f"{names}: only the adversarial mixture has this gradient; use 0.0"
    return
  if given.frozen:
    yield "generator.mixture generator.frozen: a frozen generator cannot be trained adversarially"
  if given.share_embeddings in ("none", "gdes"):
    names = "generator.mixture generator.share_embeddings"
    yield f"{names}: tokens would be sampled in other embeddings than the encoder's; use 'tokens' or 'all'"
  has_dropout = config.model.dropout > 0 or config.model.attention_dropout > 0
  if given.sampling_dropout == "eval" and has_dropout:
    yield (
      "generator.mixture generator.sampling_dropout: the reversed gradient would not reach a generator that "
      "samples in a second pass; use 'zero' (AMOS) or 'train'"
    )
