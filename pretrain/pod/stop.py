"""Stops training on SIGTERM or SIGINT at the next step boundary, so that the loop saves a checkpoint."""

import os
import signal
import threading
from collections.abc import Callable

from data.command import TOO_LATE
from pretrain.pod.peers import here

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
    self._peers, self._settle = here(), settle
    self._has_agreed = self._is_finished = False

  def reached(self) -> bool:
    """Returns whether to stop at this point of the program; all processes call it at the same points."""
    self._has_agreed = self._peers.reached_stop() or self._has_agreed
    return self.is_agreed

  @property
  def is_agreed(self) -> bool:
    """Whether all processes stop, according to the last call of `reached`."""
    return self.is_set if self._peers.number == 1 else self._has_agreed

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
    self._peers.ask_to_stop()
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
