"""Ensures a single writer of a bucket's folder with a small object that the owner refreshes regularly.

Buckets have no locks that end with their process. The owner increments a number in the object; if it stops,
the owner is dead. No clocks are compared. An owner that finds another owner's object must stop writing.
"""

import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from data import files
from data.buckets.mirror import Mirror
from data.errors import DataError, UserError

logger = logging.getLogger(__name__)

NAME = "owner.json"
BEAT = 15.0  # seconds between refreshes
SILENCE = 60.0  # seconds without a refresh after which an owner counts as dead
_LOOK = 1.0  # seconds between checks of another owner's object


@contextlib.contextmanager
def owned(mirror: Mirror, *, lost: Callable[[UserError], None]) -> Iterator[None]:
  """Makes this process the only writer of the bucket's folder `mirror.place` within the block.

  It must hold the lock of `mirror`. A thread calls `lost` if another process becomes the writer. DataError:
  another writer is active. StorageError: the folder cannot be written.
  """
  remote, over = mirror.place, threading.Event()
  content = {
    "token": secrets.token_hex(8),
    "copy": mirror.id,
    "process": files.this_process(),
  }

  def beat() -> None:
    number = 0
    while not over.wait(BEAT):
      number += 1
      with contextlib.suppress(UserError):  # a bucket that is unreachable for a while is not lost
        found = _parsed(remote.read(NAME))
        if found.get("token", "") != content["token"]:
          lost(DataError(f"{remote}: {found.get('process', 'somebody')} has taken it over from this run"))
          return
        remote.write(NAME, _bytes(content | {"beat": number}))

  while not remote.write(NAME, _bytes(content | {"beat": 0}), is_new=True):
    _outlast(mirror)
  thread = threading.Thread(target=beat, name="owner of a bucket", daemon=True)
  thread.start()
  try:
    yield
  finally:
    over.set()
    thread.join(BEAT)
    with contextlib.suppress(UserError):
      if _parsed(remote.read(NAME)).get("token") == content["token"]:
        remote.remove([NAME])


def _outlast(mirror: Mirror) -> None:
  """Waits `SILENCE` seconds, then removes a dead owner's object; DataError if the owner refreshed it."""
  remote = mirror.place
  first = remote.read(NAME)
  # An owner with this very copy is dead, because this process has the copy's lock.
  if _parsed(first).get("copy") != mirror.id:
    process = _parsed(first).get("process", "it has just begun")
    logger.info(f"{remote.address} is owned by {process}; waiting {SILENCE:.0f} s to see if it still runs")
    deadline = time.monotonic() + SILENCE
    while time.monotonic() < deadline:
      time.sleep(_LOOK)
      found = remote.read(NAME)
      if found is None:
        return
      if found != first:
        raise DataError(
          f"another run is active in {remote.address} ({process}); wait for it, stop it, or use another "
          f"{remote.flag}"
        )
  if remote.read(NAME) == first:
    remote.remove([NAME])


def _bytes(content: dict[str, Any]) -> bytes:
  return json.dumps(content).encode()


def _parsed(content: bytes | None) -> dict[str, Any]:
  with contextlib.suppress(ValueError):
    parsed = json.loads(content or b"{}")
    return parsed if isinstance(parsed, dict) else {}
  return {}
