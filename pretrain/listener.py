"""The protocol between the loop and all else that happens while a run trains.

Evaluation, logs, probes, spikes and the like are listeners: a file each, and a row of `start/listeners.py`.
"""

from typing import Any

# {metric: (sum, weight)} of one update, on the host; of fine-tuning's runs in a program [runs] arrays.
Figures = dict[str, tuple[float, float]]


class Listener:
  """Does nothing at any moment of a run; a feature overrides the moments that it needs.

  Attributes:
    every: `after` is called after so many updates, after the last one, and before the first of a start, where
      the loop waits for the device; 0: never.
  """

  every: int = 0

  def acts(self, step: int, total: int) -> bool:
    """Whether `after` is called after `step` of `total` updates."""
    return bool(self.every) and (step % self.every == 0 or step == total)

  def after(self, step: int, state: Any) -> None:
    """Takes the state, on devices, after `step` updates; the figures of all of them were `seen` before."""

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """Takes the figures of update number `step`; listeners further down the table see what this one adds.

    Called for every update in order, as a rule while the next one is computed: `state` may be of that one.
    `RollBack` ends this pass of the loop, and the run goes on from an earlier checkpoint.
    """

  def saving(self, step: int) -> dict[str, Any]:
    """Returns what the checkpoint of `step` must say, as JSON values, for a later start to go on alike."""
    return {}

  def end(self) -> None:
    """Lets go of files and threads, however the loop ended."""
