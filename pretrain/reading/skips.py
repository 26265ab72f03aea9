"""Batches that a run leaves out, and where it reads on."""

from collections.abc import Sequence
from typing import NamedTuple


class Skip(NamedTuple):
  """Batches that were left out: from update number `at` on, data is taken from so many batches further on."""

  at: int  # updates done
  batches: int
  spike: int  # the step whose loss it was
  loss: float
  zscore: float


def position(step: int, skips: Sequence[Skip]) -> int:
  """Which batch of the data the update after `step` updates takes; without skips `step`."""
  return step + sum(skip.batches for skip in skips if skip.at <= step)
