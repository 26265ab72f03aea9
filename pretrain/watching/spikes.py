"""Detects loss spikes, and lets a run go back before them.

A spike is a loss far above those of the steps before. A run may go back to the checkpoint before it and skip
the data in between. Its checkpoints record this (`Skip`), so that a later start skips the same data.
"""

import collections
import logging
import math
import statistics
from collections.abc import Sequence
from typing import Any

from data.errors import DivergedError
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.listener import Figures, Listener
from pretrain.reading.batches import Skip

logger = logging.getLogger(__name__)

WINDOW = 100  # steps, if the config has 0
MOST_ROLL_BACKS = 3  # to one checkpoint; after that the data is not the cause


class RollBack(Exception):
  """Raised to end a pass of the loop; the run continues from step `skip.at` without the skipped batches."""

  def __init__(self, skip: Skip) -> None:
    super().__init__(skip)
    self.skip = skip


class Spikes:
  """Detects loss spikes, losses far above the mean of the last steps, and plans the skip of their batches."""

  def __init__(
    self, zscore: float, window: int, losses: Sequence[float] = (), skips: Sequence[Skip] = ()
  ) -> None:
    """Detects a loss `zscore` standard deviations above the mean of the last `window` ones; 0: off.

    `losses` are those before the checkpoint that the run resumes from, `skips` the batches that it skips.
    """
    self.zscore, self.skips = zscore, tuple(skips)
    self.losses = collections.deque(losses, maxlen=window or WINDOW)

  def see(self, loss: float) -> float | None:
    """Adds the loss of the next step; returns its distance in standard deviations if it is a spike.

    There are no spikes until the window is full. Non-finite losses are ignored: such updates are not applied.
    """
    if not self.zscore or not math.isfinite(loss):
      return None
    spike = None
    if len(self.losses) == self.losses.maxlen:
      mean = statistics.fmean(self.losses)  # pstdev sums fractions and takes seven times as long
      spread = math.sqrt(statistics.fmean((before - mean) ** 2 for before in self.losses))
      distance = (loss - mean) / max(spread, 1e-12)
      spike = distance if distance > self.zscore else None
    self.losses.append(loss)
    return spike

  def roll_back(self, step: int, loss: float, zscore: float, *, to: int) -> RollBack:
    """Returns the exception for going back from a spike at update `step` to the checkpoint of step `to`.

    DivergedError: the run has already returned to that step `MOST_ROLL_BACKS` times.
    """
    tried = sum(skip.at == to for skip in self.skips)
    if tried == MOST_ROLL_BACKS:
      left_out = sum(skip.batches for skip in self.skips if skip.at == to)
      raise DivergedError(
        f"the loss jumped again at step {step:,}, although {left_out:,} batches after step {to:,} were "
        f"skipped in {tried} attempts; begin a new run with a lower rate, or inspect the text there\n"
        f"  --workdir=NEW --config.train.init_from=WORKDIR --config.optimizer.learning_rate=LOWER\n"
        f"  python -m pretrain.checkpoints examples WORKDIR --steps={to + left_out + 1}:{step + left_out}"
      )
    return RollBack(Skip(to, step - to, step, loss, zscore))


class SpikeWatch(Listener):
  """Counts spikes in a run and, if the config says so, goes back before a spike."""

  def __init__(self, spikes: Spikes, checkpoints: Checkpoints, *, is_rolling_back: bool) -> None:
    """Watches with `spikes`; `is_rolling_back` lets the run return to its `checkpoints`."""
    self._spikes, self._checkpoints = spikes, checkpoints
    self._is_rolling_back = is_rolling_back

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Adds the metric 'loss_spikes'; may raise RollBack or DivergedError at a spike; see `Listener.seen`."""
    if not self._spikes.zscore:
      return
    loss = figures["loss"][0]
    zscore = self._spikes.see(loss)
    figures["loss_spikes"] = (float(zscore is not None), 1.0)
    if zscore is None:
      return
    logger.warning(
      f"Loss spike at step {step:,}: {loss:.4f}, {zscore:.1f} standard deviations above those before"
    )
    if self._is_rolling_back:
      self._roll_back(step, loss, zscore)

  def _roll_back(self, step: int, loss: float, zscore: float) -> None:
    self._checkpoints.wait()
    latest = self._checkpoints.latest_step()
    if latest is None:
      logger.warning("There is no checkpoint yet to go back to; going on")
      return
    roll_back = self._spikes.roll_back(step, loss, zscore, to=latest)
    logger.warning(f"Going back to step {latest:,}; skipped batches since then: {roll_back.skip.batches:,}")
    raise roll_back

  def saving(self, step: int) -> dict[str, Any]:
    """Returns the last losses and the skipped batches; see `Listener.saving`."""
    spikes = self._spikes
    if not (spikes.zscore or spikes.skips):
      return {}
    losses = [*spikes.losses] if spikes.zscore else []
    return {"spikes": {"losses": losses, "skips": [[*skip] for skip in spikes.skips]}}
