"""Sizes and layout of the arrays in a TPU attention kernel."""

import dataclasses
import math

TILE = 128  # queries of a tile; lengths are padded to multiples of it. The lanes of a register
SUBLANES = 8  # copies of the bias vector, each shifted by one more; the sublanes of a register


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes that a kernel is compiled for."""

  rows: int
  length: int  # tokens of a row
  heads: int  # on this device
  head_dim: int
  dropout_rate: float
  window: int | None

  @property
  def padded(self) -> int:
    """Tokens of a row in memory, a multiple of the tile."""
    return -(-self.length // TILE) * TILE

  @property
  def tiles(self) -> int:
    """Number of tiles in a row."""
    return self.padded // TILE

  @property
  def at_once(self) -> int:
    """Rows of a grid step; short rows share one, so that one computes while another waits."""
    return math.gcd(self.rows, max(1, 8 // self.tiles**2))  # 8 pieces of 128 queries and 128 keys

  @property
  def group(self) -> int:
    """Heads of a grid step: as many as fill 128 lanes, or all if they cannot."""
    fill = max(1, TILE // self.head_dim)
    fits = self.head_dim * fill % TILE == 0 and self.heads % fill == 0
    return fill if fits else self.heads

  @property
  def groups(self) -> int:
    """Number of grid steps over the heads."""
    return self.heads // self.group

  @property
  def lanes(self) -> int:
    """Width of a group of heads."""
    return self.group * self.head_dim
