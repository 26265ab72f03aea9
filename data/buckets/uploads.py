"""What a run makes in its copy of a place goes up behind it, in a thread, while the run owns the place."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from data.buckets import owner
from data.buckets.mirror import Mirror
from data.errors import UserError

_LOOK = 0.5  # seconds between two looks at what there is to send


# (is_end=) sends what is new and whole, at the end of a run all that is left; StorageError if it cannot.
Send = Callable[..., None]


class Uploads:
  """Calls a `send` again and again in a thread; as a context, once more at its end.

  Where something cannot be sent the run is asked to stop, as a user would ask, and the end of the context
  raises the reason.
  """

  def __init__(self, send: Send) -> None:
    self._send = send
    self._is_over, self._error = threading.Event(), None
    self._thread = threading.Thread(target=self._go_on, name="uploads", daemon=True)

  def give_up(self, error: UserError) -> None:
    """Sends no more, and asks the run to stop."""
    self._error = self._error or error
    if not self._is_over.is_set():  # else the run has ended, and its next word is this error
      self._is_over.set()
      os.kill(os.getpid(), signal.SIGTERM)

  def __enter__(self) -> None:
    self._thread.start()

  def __exit__(self, kind: type[BaseException] | None, *_) -> None:
    self._is_over.set()
    self._thread.join()
    if self._error is not None:
      raise self._error
    if kind is None:
      self._send(is_end=True)
    elif issubclass(kind, UserError):
      with contextlib.suppress(UserError):  # the run's own error says more
        self._send(is_end=True)

  def _go_on(self) -> None:
    try:
      while not self._is_over.wait(_LOOK):
        self._send(is_end=False)
    except UserError as error:
      self.give_up(error)


@contextlib.contextmanager
def owned(mirror: Mirror, send: Send) -> Iterator[Uploads]:
  """Within the block this process alone works in the copy and in its place, which it sends to.

  DataError: another run is at work there.
  """
  with mirror.locked(advice=f"wait for it, stop it, or use another {mirror.place.flag}"):
    uploads = Uploads(send)
    with owner.owned(mirror, lost=uploads.give_up):
      yield uploads
