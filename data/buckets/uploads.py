"""Uploads a run's files in a thread while the run owns the bucket's folder."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from data.buckets import owner
from data.buckets.mirror import Mirror
from data.errors import UserError

_LOOK = 0.5  # seconds between calls of `send`


# (is_end=) uploads new complete files, and at the end of a run all others too; StorageError if it fails.
Send = Callable[..., None]


class Uploads:
  """Uploads a run's files: calls `send` every 0.5 s in a thread, and once when the `with` block ends.

  If `send` fails, SIGTERM asks the run to stop, and the end of the `with` block raises the error.
  """

  def __init__(self, send: Send) -> None:
    self._send = send
    self._is_over, self._error = threading.Event(), None
    self._thread = threading.Thread(target=self._go_on, name="uploads", daemon=True)

  def give_up(self, error: UserError) -> None:
    """Stops uploading, and asks the run to stop with SIGTERM."""
    self._error = self._error or error
    if not self._is_over.is_set():  # else the run has ended already
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
      with contextlib.suppress(UserError):  # the run's own error is more important
        self._send(is_end=True)

  def _go_on(self) -> None:
    try:
      while not self._is_over.wait(_LOOK):
        self._send(is_end=False)
    except UserError as error:
      self.give_up(error)


@contextlib.contextmanager
def owned(mirror: Mirror, send: Send) -> Iterator[Uploads]:
  """Reserves a bucket's folder and its local copy for this process within the block; yields its `Uploads`.

  DataError: another run is active there.
  """
  with mirror.locked(advice=f"wait for it, stop it, or use another {mirror.place.flag}"):
    uploads = Uploads(send)
    with owner.owned(mirror, lost=uploads.give_up):
      yield uploads
