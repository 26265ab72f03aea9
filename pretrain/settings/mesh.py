"""Sizes of the axes of a device mesh, and the possible sizes closest to impossible ones.

Imports no jax.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

from pretrain.settings.field_types import Limit

AxisSize = Annotated[int, Limit(-1)]


class Sizes(NamedTuple):
  """The number of devices along each axis of a mesh."""

  data: int
  fsdp: int
  tensor: int


@dataclasses.dataclass(frozen=True)
class MeshSettings:
  """Fields under `mesh`: devices per axis; one axis may be -1, which takes all other devices."""

  data: AxisSize = -1
  fsdp: AxisSize = 1
  tensor: AxisSize = 1
  fsdp_across_slices: bool = False

  @property
  def sizes(self) -> Sizes:
    """The sizes as the config gives them; an automatic one is -1."""
    return Sizes(self.data, self.fsdp, self.tensor)

  def filled(self, number: int) -> Sizes | None:
    """Returns the sizes with -1 replaced for `number` devices; None if their product is not `number`."""
    fixed = math.prod(size for size in self.sizes if size != -1)
    filled = Sizes(*(number // fixed if size == -1 else size for size in self.sizes))
    return filled if math.prod(filled) == number else None


def nearest(asked: Sizes, number: int, *, can: Callable[[Sizes], bool] = lambda _: True) -> Sizes | None:
  """Returns the mesh sizes of `number` devices closest to `asked` for which `can` is true, or None.

  The distance is the number of doublings and halvings. A size of -1 in `asked` matches any size.
  """
  for sizes in sorted(_layouts(number), key=lambda sizes: _distance(asked, sizes)):
    if can(sizes):
      return sizes
  return None


def _layouts(number: int) -> Iterator[Sizes]:
  divisors = [size for size in range(1, number + 1) if number % size == 0]
  for tensor in divisors:
    for fsdp in divisors:
      if number % (tensor * fsdp) == 0:
        yield Sizes(number // (tensor * fsdp), fsdp, tensor)


def _distance(asked: Sizes, sizes: Sizes) -> tuple[float, ...]:
  """Returns a sort key: doublings between the sizes, then the smaller tensor axis, then the smaller fsdp."""
  apart = sum(abs(math.log2(found / wanted)) for wanted, found in zip(asked, sizes) if wanted > 0)
  return round(apart, 6), sizes.tensor, sizes.fsdp


def shown(sizes: Sizes) -> str:
  """Returns the flags that set these mesh sizes."""
  return " ".join(f"--config.mesh.{axis}={size}" for axis, size in sizes._asdict().items())
