"""A bar of a run's steps, where somebody watches."""

from typing import Any

from tqdm import tqdm

from pretrain.listener import Figures, Listener


class Progress(Listener):
  """Moves the bar on, with the loss and the speed beside it."""

  def __init__(self, bar: tqdm, tokens_per_step: int) -> None:
    """`tokens_per_step` are those of the global batch."""
    self._bar, self._tokens = bar, tokens_per_step

  def seen(self, step: int, figures: Figures, state: Any) -> None:
    """See `Listener.seen`."""
    self._bar.update(1)
    rate = self._bar.format_dict["rate"] or 0.0
    shown = f"loss {figures['loss'][0]:.4g}, {rate * self._tokens:,.0f} tokens/s"
    self._bar.set_postfix_str(shown, refresh=False)

  def end(self) -> None:
    """See `Listener.end`."""
    self._bar.close()
