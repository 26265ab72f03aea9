"""Batches that a run skips, and the resulting position in the data."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pretrain.settings.run import BatchSizes


class Skip(NamedTuple):
  """Skipped batches: from update `at` on, data is read `batches` batches further on."""

  at: int  # updates done
  batches: int
  spike: int  # the step of the loss spike
  loss: float
  zscore: float


def _before(step: int, skips: Sequence[Skip]) -> list[Skip]:
  return [skip for skip in skips if skip.at <= step]


def position(step: int, skips: Sequence[Skip]) -> int:
  """Returns the number of the data batch for the update after `step` updates; without skips `step`."""
  return step + sum(skip.batches for skip in _before(step, skips))


def first_row(step: int, skips: Sequence[Skip], sizes: BatchSizes) -> int:
  """Returns the position in the data of the first row for the update after `step` updates.

  A skip leaves out the rows of its batches.
  """
  rows = sizes.rows_before
  return rows(step) + sum(rows(skip.at + skip.batches) - rows(skip.at) for skip in _before(step, skips))


def known_skips(saved: Mapping[str, Any]) -> tuple[Skip, ...]:
  """Returns the skips in a checkpoint's meta."""
  return tuple(Skip(*skip) for skip in saved.get("spikes", {}).get("skips", []))
