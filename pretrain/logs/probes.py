"""Probes the frozen encoder during training."""

import logging
from collections.abc import Callable
from typing import Any

import jax

from pretrain.corruption import token_tables
from pretrain.listener import Listener
from pretrain.logs.metrics import Throughput
from pretrain.logs.written import Written

logger = logging.getLogger(__name__)


class Probes(Listener):
  """Writes probe metrics every `train.probe_every` steps, unless a stop is requested."""

  def __init__(
    self,
    probing: Any,
    first: int,
    every: int,
    written: Written,
    speed: Throughput,
    is_stopping: Callable[[int], bool],
  ) -> None:
    """`probing` measures host parameters: (params, is_stopping=) -> {metric: value}, or None if stopped."""
    self.every = every
    is_due = first % every == 0 and not (first and "probe" in written.kinds)
    self._is_done_at = None if is_due else first
    self._probing, self._written, self._speed = probing, written, speed
    self._is_stopping = is_stopping

  def after(self, step: int, state: Any) -> None:
    """Runs the probes after a step and writes their scores; see `Listener.after`."""
    if step == self._is_done_at:
      return
    params = token_tables.joined(jax.device_get(state.params))
    figures = self._probing.measure(params, is_stopping=lambda: self._is_stopping(step))
    if figures is not None:
      self._written.write(step, figures)
      logger.info(f"probes at step {step:,}, figures measured: {len(figures)}")
      self._speed.restart(step)
