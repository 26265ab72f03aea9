"""Sizes and layout of the arrays in the TPU kernels of attention for long rows."""

import dataclasses
import math

from pretrain.ops.attention.attention_sizes import TILE, Sizes

_BLOCK = 512  # queries of a grid step
_MOST = 1_024  # keys that are computed at once


@dataclasses.dataclass(frozen=True)
class LongSizes(Sizes):
  """The sizes that a kernel for long rows is compiled for."""

  @property
  def padded(self) -> int:
    """Tokens of a row in memory: a multiple of the tile, or of a block if the row has several."""
    unit = TILE if self.length <= _BLOCK else _BLOCK
    return -(-self.length // unit) * unit

  @property
  def chunk(self) -> int:
    """Keys of a chunk."""
    return math.gcd(self.padded, _MOST) if self.padded > _BLOCK else self.padded

  @property
  def block(self) -> int:
    """Queries of a grid step; those that read few keys are more."""
    return self.chunk if self.near else min(_BLOCK, self.padded)

  @property
  def near(self) -> int:
    """Keys that are read for a tile of queries, around it; 0: chunks of keys are."""
    if self.window is None:
      return 0
    keys = -(-(TILE + 2 * self.window) // TILE) * TILE
    return keys if keys <= min(_MOST, self.padded) else 0
