"""Batches that a run skips, and the resulting position in the data."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Skip(NamedTuple):
  """Skipped batches: from update `at` on, data is read `batches` batches further on."""

  at: int  # updates done
  batches: int
  spike: int  # the step of the loss spike
  loss: float
  zscore: float


def position(step: int, skips: Sequence[Skip]) -> int:
  """Returns the number of the data batch for the update after `step` updates; without skips `step`."""
  return step + sum(skip.batches for skip in skips if skip.at <= step)


def known_skips(saved: Mapping[str, Any]) -> tuple[Skip, ...]:
  """Returns the skips in a checkpoint's meta."""
  return tuple(Skip(*skip) for skip in saved.get("spikes", {}).get("skips", []))
