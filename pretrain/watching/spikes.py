"""A loss that leaps: noticed, and left behind.

A spike is a loss far above those of the steps before. A run may go back to the checkpoint before it and leave
out the data that led there, which its checkpoints then say (`Skip`), so that a later start does the same.
"""

import collections
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from data.errors import DivergedError
from pretrain.reading.skips import Skip

WINDOW = 100  # steps, where the config says 0
MOST_ROLL_BACKS = 3  # to one checkpoint; after as many the data is not what is wrong


class RollBack(Exception):
  """Not an error: the run goes on from the checkpoint of step `skip.at`, without the batches of `skip`."""

  def __init__(self, skip: Skip) -> None:
    super().__init__(skip)
    self.skip = skip


class Spikes:
  """Compares each loss with those of the steps before it."""

  def __init__(
    self, *, zscore: float, window: int, saved: Mapping[str, Any] | None = None, skips: Sequence[Skip] = ()
  ) -> None:
    """Notices a loss `zscore` standard deviations above the mean of the last `window` ones; 0: none.

    `saved` is what `to_save` gave with the checkpoint that the run goes on from, `skips` those since.
    """
    saved = saved or {}
    self._zscore = zscore
    self._losses = collections.deque(saved.get("losses", []), maxlen=window or WINDOW)
    self.skips = (*(Skip(*skip) for skip in saved.get("skips", [])), *skips)

  def to_save(self) -> dict[str, Any]:
    """JSON values for the checkpoint."""
    return {"losses": [*self._losses] if self._zscore else [], "skips": [[*skip] for skip in self.skips]}

  def see(self, loss: float) -> float | None:
    """Takes the loss of the next step; its distance in standard deviations if that is a spike.

    Nothing is one until the window is full. What is not finite is not looked at: no such update is applied.
    """
    if not self._zscore or not math.isfinite(loss):
      return None
    spike = None
    if len(self._losses) == self._losses.maxlen:
      mean = statistics.fmean(self._losses)  # pstdev sums fractions, which takes seven times as long
      spread = math.sqrt(statistics.fmean((before - mean) ** 2 for before in self._losses))
      distance = (loss - mean) / max(spread, 1e-12)
      spike = distance if distance > self._zscore else None
    self._losses.append(loss)
    return spike

  def roll_back(self, step: int, loss: float, zscore: float, *, to: int) -> RollBack:
    """What to raise at a spike in `step`, the number of an update, to go back to the checkpoint of step `to`.

    DivergedError: it was tried `MOST_ROLL_BACKS` times from there.
    """
    tried = sum(skip.at == to for skip in self.skips)
    if tried == MOST_ROLL_BACKS:
      left_out = sum(skip.batches for skip in self.skips if skip.at == to)
      raise DivergedError(
        f"the loss leapt again at step {step:,}, although {left_out:,} batches after step {to:,} were left "
        f"out in {tried} attempts; lower optimizer.learning_rate, or look at the text there (--ledger)"
      )
    return RollBack(Skip(to, step - to, step, loss, zscore))
