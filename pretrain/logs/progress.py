"""A progress bar of a run's steps, for terminals."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from pretrain.listener import Listener


class Progress(Listener):
  """Advances the bar, and shows the loss and the speed."""

  def __init__(self, bar: tqdm, tokens_before: Callable[[int], int] | None = None) -> None:
    """`tokens_before` returns the tokens of the batches before a step; None: no speed is shown."""
    self._bar, self._tokens_before = bar, tokens_before

  def seen(self, step: int, figures: Mapping[str, Any], state: Any) -> None:
    """Shows the loss, or the mean loss of several runs; see `Listener.seen`."""
    self._bar.update(1)
    shown = f"loss {float(np.mean(figures['loss'][0])):.4g}"
    if self._tokens_before:
      tokens = self._tokens_before(step) - self._tokens_before(step - 1)
      shown += f", {(self._bar.format_dict['rate'] or 0.0) * tokens:,.0f} tokens/s"
    self._bar.set_postfix_str(shown, refresh=False)

  def end(self) -> None:
    """Closes the bar; see `Listener.end`."""
    self._bar.close()
