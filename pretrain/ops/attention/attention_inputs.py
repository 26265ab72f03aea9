"""What kernels for attention are given, whichever machine they are for."""

from typing import NamedTuple

import jax


class Settings(NamedTuple):
  """What does not change from call to call of a program."""

  kernels: str  # whose: 'pallas_tpu' or 'triton'
  head_dim: int
  dropout_rate: float
  window: int | None
  interpret: bool


class Fixed(NamedTuple):
  """Arrays without a gradient."""

  key_mask: jax.Array  # [batch, length] bool
  segment_ids: jax.Array | None  # [batch, length] int32
  words: jax.Array | None  # [batch, 2] uint32
