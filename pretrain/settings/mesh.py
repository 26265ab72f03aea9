"""How many devices each axis of the mesh has, and which sizes come nearest to those that cannot be had.

Imports no jax.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

from pretrain.settings.field_types import Limit

AxisSize = Annotated[int, Limit(-1)]


class Sizes(NamedTuple):
  """Devices along each axis of a mesh."""

  data: int
  fsdp: int
  tensor: int


@dataclasses.dataclass(frozen=True)
class MeshSettings:
  """Devices per axis; one of them may be -1: the devices that are left."""

  data: AxisSize = -1
  fsdp: AxisSize = 1
  tensor: AxisSize = 1
  fsdp_across_slices: bool = False

  @property
  def sizes(self) -> Sizes:
    """The sizes as they were given, -1 among them."""
    return Sizes(self.data, self.fsdp, self.tensor)

  def filled(self, number: int) -> Sizes | None:
    """The sizes on `number` devices; None where their product is not that number."""
    fixed = math.prod(size for size in self.sizes if size != -1)
    filled = Sizes(*(number // fixed if size == -1 else size for size in self.sizes))
    return filled if math.prod(filled) == number else None


def nearest(asked: Sizes, number: int, *, can: Callable[[Sizes], bool] = lambda _: True) -> Sizes | None:
  """The sizes of `number` devices for which `can` holds that need the fewest doublings from those asked for.

  An asked size of -1 may become any. None: there are no such sizes.
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
  """Doublings; of equally near ones the plainest: little tensor, then little fsdp."""
  apart = sum(abs(math.log2(found / wanted)) for wanted, found in zip(asked, sizes) if wanted > 0)
  return round(apart, 6), sizes.tensor, sizes.fsdp


def shown(sizes: Sizes) -> str:
  """The flags that ask for these sizes."""
  return " ".join(f"--config.mesh.{axis}={size}" for axis, size in sizes._asdict().items())
