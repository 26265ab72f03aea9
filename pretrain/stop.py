"""A polite stop: somebody asks, the loop saves and leaves."""

import signal

STOPPED = 75  # exit code after a requested stop with everything saved: start the same command again


class StopRequest:
  """Within `with`, the first SIGTERM or SIGINT asks for a stop at the next step boundary; a second kills."""

  def __init__(self) -> None:
    self.is_set = False

  def __enter__(self) -> "StopRequest":
    numbers = (signal.SIGTERM, signal.SIGINT)
    self._before = {number: signal.signal(number, self._note) for number in numbers}
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _note(self, number: int, _) -> None:
    self.is_set = True
    signal.signal(number, signal.SIG_DFL)
