"""Inputs that attention kernels for all platforms share."""

from typing import NamedTuple

import jax


class Settings(NamedTuple):
  """Static settings of an attention kernel."""

  kernels: str  # 'pallas_tpu' or 'triton'
  head_dim: int
  dropout_rate: float
  window: int | None
  interpret: bool


class Fixed(NamedTuple):
  """Inputs of attention without a gradient: key masks, segments, and words of the rows' random keys."""

  key_mask: jax.Array  # [batch, length] bool
  segment_ids: jax.Array | None  # [batch, length] int32
  words: jax.Array | None  # [batch, 2] uint32
