"""Types, choices and limits of the fields under `model`. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pretrain.settings.field_types import Count, CountOrZero, FractionBelowOne, Limit, Positive

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
  num_segments: CountOrZero = 0
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
