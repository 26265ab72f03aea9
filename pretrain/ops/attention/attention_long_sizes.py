"""Sizes and layout of the arrays in the TPU kernels of attention for long rows."""

import dataclasses
import math

from pretrain.ops.attention.attention_sizes import TILE, Sizes

_CHUNK = 512  # keys that are computed at once, if not all near ones are
_NEAREST = 1_024  # at most so many keys near a tile of queries are


@dataclasses.dataclass(frozen=True)
class LongSizes(Sizes):
  """The sizes that a kernel for long rows is compiled for."""

  @property
  def padded(self) -> int:
    """Tokens of a row in memory: a multiple of the tile, or of a chunk if the row has several."""
    unit = TILE if self.length <= _CHUNK else _CHUNK
    return -(-self.length // unit) * unit

  @property
  def chunk(self) -> int:
    """Keys of a chunk."""
    return min(_CHUNK, self.padded)

  @property
  def block(self) -> int:
    """Queries of a grid step; those that read few keys are more."""
    return math.gcd(self.padded, 2 * _CHUNK) if self.near else self.chunk

  @property
  def near(self) -> int:
    """Keys that are read for a tile of queries, around it; 0: chunks of keys are."""
    if self.window is None:
      return 0
    keys = -(-(TILE + 2 * self.window) // TILE) * TILE
    return keys if keys <= min(_NEAREST, self.padded) else 0
