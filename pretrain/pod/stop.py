"""A polite stop: somebody asks, the loop saves and leaves."""

import os
import signal
import threading
from collections.abc import Callable

from data.command import TOO_LATE
from pretrain.pod.peers import ALONE, Alone

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
  """Within `with`, the first SIGTERM or SIGINT asks for a stop at the next step boundary; a second kills.

  With `peers` the request of one process is that of all, which call `reached` at the same points and stop at
  the same of them. `settle` learns that the work is done, however it ended, and whether somebody had asked;
  signals are those of before after that.
  """

  def __init__(self, peers: Alone = ALONE, settle: Callable[[bool], None] = lambda is_asked: None) -> None:
    self.is_set = False  # somebody asked this process
    self._peers, self._settle = peers, settle
    self._has_agreed = self._is_finished = False

  def reached(self) -> bool:
    """Whether to stop at this point of the program."""
    self._has_agreed = self._peers.reached_stop() or self._has_agreed
    return self.is_agreed

  @property
  def is_agreed(self) -> bool:
    """Whether all processes stop, as far as the last call of `reached` knows."""
    return self.is_set if self._peers.number == 1 else self._has_agreed

  def finish(self) -> None:
    """Notes that nothing is left to stop: a line answers a request that has come, or comes."""
    self._is_finished = True
    if self.is_set:
      os.write(2, TOO_LATE)

  def __enter__(self) -> "StopRequest":
    self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
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
    for number in _SIGNALS:  # whoever is impatient may have asked by Ctrl-C and insists by SIGTERM
      signal.signal(number, signal.SIG_DFL)


def _end_at_the_second(reading: int) -> None:
  """Ends the process at the second signal whose number comes out of the pipe `reading`; until it is closed.

  Python's handlers wait for the end of a call into compiled code that does not look for them; the bytes are
  written at once.
  """
  asked = 0
  while number := os.read(reading, 1):
    asked += number[0] in _SIGNALS
    if asked == 2:
      os._exit(128 + number[0])
  os.close(reading)
