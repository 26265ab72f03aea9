"""Stops training on SIGTERM or SIGINT at the next step boundary, so that the loop saves a checkpoint."""

import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from data.command import TOO_LATE

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
  """A context in which the first SIGTERM or SIGINT requests a stop at the next step, and a second one kills.

  A request to one process stops all processes of a run: they call `reached` at the same points and stop at
  the same point. At the end of the block `settle` gets whether this process had a request; then the earlier
  signal handlers are restored. A signal that the process ignores at the start stays ignored: a shell starts
  background commands so, and sends them the one that is meant.
  """

  def __init__(self, settle: Callable[[bool], None] = lambda is_asked: None) -> None:
    self.is_set = False  # this process got a request
    self._settle, self._is_finished = settle, False
    self._has_agreed, self._counted = False, None

  def reached(self) -> bool:
    """Returns whether to stop at this point of the program; all processes call it at the same points.

    Of several processes, a request made before the last call counts: its sum is ready with the step before.
    """
    if jax.process_count() > 1:
      self._has_agreed = self._has_agreed or (self._counted is not None and int(self._counted) > 0)
      self._counted = _count()(self.is_set)
    return self.is_agreed

  @property
  def is_agreed(self) -> bool:
    """Whether all processes stop, according to the last call of `reached`."""
    return self._has_agreed if jax.process_count() > 1 else self.is_set

  def finish(self) -> None:
    """Marks the work as finished: an earlier or later request prints that it is too late."""
    self._is_finished = True
    if self.is_set:
      os.write(2, TOO_LATE)

  def __enter__(self) -> "StopRequest":
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    self._before = {number: signal.signal(number, self._note) for number in heard}
    reading, self._writing = os.pipe()
    os.set_blocking(self._writing, False)
    self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_the_second, args=(reading,), name="signals", daemon=True).start()
    return self

  def __exit__(self, *_) -> None:
    self._settle(self.is_set)
    signal.set_wakeup_fd(self._wakeup)
    os.close(self._writing)
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _note(self, *_) -> None:
    self.is_set = True
    if self._is_finished:
      os.write(2, TOO_LATE)
    for number in self._before:  # the second signal may be of the other kind
      signal.signal(number, signal.SIG_DFL)


def _end_at_the_second(reading: int) -> None:
  """Ends the process at the second SIGTERM or SIGINT whose number it reads from a pipe, until that is closed.

  Python runs its own handlers only after a call into compiled code returns; the bytes are written at once.
  """
  asked = 0
  while number := os.read(reading, 1):
    asked += number[0] in _SIGNALS
    if asked == 2:
      os._exit(128 + number[0])
  os.close(reading)


@functools.cache
def _count() -> Callable[[bool], Any]:
  """Returns a function of all processes at once: how many devices have a flag, [] int32, not waited for."""
  mesh = jax.sharding.Mesh(jax.devices(), "all")
  split, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (["all"], []))
  size = jax.local_device_count()
  flags = [jax.make_array_from_process_local_data(split, np.full(size, flag, np.int32)) for flag in (0, 1)]
  add = jax.jit(jax.numpy.sum, out_shardings=whole)

  def count(flag: bool) -> jax.Array:
    with jax.set_mesh(mesh):
      return add(flags[flag])

  return count
