"""Rows of each global batch of a run, constant or growing. Imports no jax."""

import dataclasses
from collections.abc import Mapping
from typing import Any

WITHOUT_WARMUP = {"batch_size_start": 0, "batch_warmup_steps": 0}  # fields of `train`


@dataclasses.dataclass(frozen=True)
class BatchSizes:
  """The rows of a run's global batches by update; the fields are those of `train`.

  With a warm-up, sizes grow from `batch_size_start` by one microbatch, each for the same number of updates.
  Source: AnswerDotAI/ModernBERT src/sequence_packer.py, where each size takes tokens in proportion to itself.
  """

  batch_size: int  # the largest, of which all arrays are
  microbatches: int = 1
  batch_size_start: int = 0  # 0: `batch_size` always
  batch_warmup_steps: int = 0  # updates before the first of `batch_size` rows

  @property
  def unit(self) -> int:
    """Rows of a microbatch."""
    return self.batch_size // self.microbatches

  @property
  def smaller(self) -> int:
    """Number of sizes below the largest."""
    return (self.batch_size - self.batch_size_start) // self.unit if self.batch_size_start else 0

  @property
  def updates(self) -> int:
    """Updates with each of the smaller sizes; 1 if there are none."""
    return self.batch_warmup_steps // self.smaller if self.smaller else 1

  def rows(self, step: int) -> int:
    """Returns the rows of the batch after `step` updates."""
    return self.batch_size - self.unit * max(self.smaller - step // self.updates, 0)

  def rows_before(self, step: int) -> int:
    """Returns the rows of the first `step` batches together."""
    grown, rest = divmod(min(step, self.updates * self.smaller), self.updates)
    missing = self.updates * (grown * self.smaller - grown * (grown - 1) // 2) + rest * (self.smaller - grown)
    return step * self.batch_size - missing * self.unit

  def shown(self, length: int = 1) -> str:
    """Returns '2,048', or '512 to 2,048 (after 3,000 updates)': rows of a batch, or its rows x `length`."""
    largest = f"{self.batch_size * length:,}"
    if not self.smaller:
      return largest
    return f"{self.batch_size_start * length:,} to {largest} (after {self.batch_warmup_steps:,} updates)"


def batch_sizes(train: Mapping[str, Any]) -> BatchSizes:
  """Returns the sizes of a config's `train`; fields that an older config lacks have their defaults."""
  names = (field.name for field in dataclasses.fields(BatchSizes))
  return BatchSizes(**{name: train[name] for name in names if name in train})
