"""A polite stop: somebody asks, the loop saves and leaves."""

import signal

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
  """Within `with`, the first SIGTERM or SIGINT asks for a stop at the next step boundary; a second kills."""

  def __init__(self) -> None:
    self.is_set = False

  def __enter__(self) -> "StopRequest":
    self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _note(self, *_) -> None:
    self.is_set = True
    for number in _SIGNALS:  # whoever is impatient may have asked by Ctrl-C and insists by SIGTERM
      signal.signal(number, signal.SIG_DFL)
