"""The protocol between the training loop and its listeners.

Evaluation, logs, probes, spikes and the like are listeners; `train.train` makes them, in an order.
"""

from typing import Any

# {metric: (sum, weight)} of one update, on the host.
Figures = dict[str, tuple[float, float]]


class Listener:
  """A listener that does nothing; a feature overrides the methods that it needs.

  Attributes:
    every: `after` is called every so many updates, after the last one, and before the first one of a start.
      The loop waits for the device then. 0: never.
  """

  every: int = 0

  def acts(self, step: int, total: int) -> bool:
    """Returns whether `after` is called after `step` of `total` updates."""
    return bool(self.every) and (step % self.every == 0 or step == total)

  def after(self, step: int, state: Any) -> None:
    """Gets the training state, on devices, after `step` updates; `seen` got all their metrics before."""

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Gets update `step`'s metrics in `figures`; later listeners in the table see what this one adds.

    Called for every update in order, usually while the next one is computed, so `state` may be the next
    one's. Raising `RollBack` ends this pass of the loop, and the run continues from an earlier checkpoint.
    """

  def saving(self, step: int) -> dict[str, Any]:
    """Returns JSON values for the checkpoint of `step`, with which a later start continues identically."""
    return {}

  def end(self) -> None:
    """Closes files and ends threads, however the loop ended."""
