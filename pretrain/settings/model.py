"""Types, choices and limits of the fields under `model`. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pretrain.settings.field_types import Count, CountOrZero, FractionBelowOne, Limit, Positive

# Earlier values of `remat`: old config files and checkpoints still have them.
OLD_REMAT: dict[object, str] = {False: "none", True: "full"}
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
  layer_norm_eps: Positive = 1e-5
  dropout: FractionBelowOne = 0.1
  attention_dropout: FractionBelowOne = 0.1
  init_stddev: Positive = 0.02
  dtype: Dtype = "float32"
  attention: Literal["auto", "plain", "by_rows", "pallas_tpu", "cudnn", "triton"] = "auto"
  remat: Remat = "none"
  scan_unroll: CountOrZero = 0

  def __post_init__(self):
    object.__setattr__(self, "remat", OLD_REMAT.get(self.remat, self.remat))


# Fields under `model` that configure the token table of a run, not an encoder.
TABLE_FIELDS: Mapping[str, Any] = {
  "vocab_chunk_rows": Count,
  "freeze_embeddings": Literal["none", "random", "checkpoint"],
  "freeze_embeddings_from": str,
}
