"""The sizes that a TPU kernel for attention is compiled for, and how its arrays are laid out."""

import dataclasses
import math

TILE = 128  # queries of a tile, and what lengths are padded to: the lanes of a register
SUBLANES = 8  # copies of the bias vector, each moved on by one: the smallest piece that registers hold


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What a kernel is compiled for."""

  rows: int
  length: int  # tokens of a row
  heads: int  # on this device
  head_dim: int
  dropout_rate: float
  window: int | None

  @property
  def padded(self) -> int:
    """Tokens of a row in memory: a multiple of the tile."""
    return -(-self.length // TILE) * TILE

  @property
  def tiles(self) -> int:
    """Tiles of a row."""
    return self.padded // TILE

  @property
  def at_once(self) -> int:
    """Rows of a grid step: short ones together, so that there is something to compute while one waits."""
    return math.gcd(self.rows, max(1, 8 // self.tiles**2))  # 8 pieces of 128 queries and 128 keys

  @property
  def group(self) -> int:
    """Heads of a grid step: those that fill 128 lanes, or all where they do not."""
    fill = max(1, TILE // self.head_dim)
    fits = self.head_dim * fill % TILE == 0 and self.heads % fill == 0
    return fill if fits else self.heads

  @property
  def groups(self) -> int:
    """Grid steps over the heads."""
    return self.heads // self.group

  @property
  def lanes(self) -> int:
    """Width of a group of heads."""
    return self.group * self.head_dim
