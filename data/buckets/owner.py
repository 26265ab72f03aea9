"""Who writes in a place: a small object that one process makes, and whose number it raises as a sign of life.

No bucket has locks that go with their process. An owner whose number stands still is gone; nobody compares
clocks. An owner that finds the object to be another's has been taken for dead, and must write no more.
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
BEAT = 15.0  # seconds between signs of life
SILENCE = 60.0  # seconds without one until an owner counts as gone
_LOOK = 1.0  # seconds between two looks at another's


@contextlib.contextmanager
def owned(mirror: Mirror, *, lost: Callable[[UserError], None]) -> Iterator[None]:
  """Within the block this process, which holds the lock of the `mirror`, is the owner of its place.

  `lost` is called, in a thread, when another has become the owner. DataError: another is at work there.
  StorageError: the place cannot be written.
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
      with contextlib.suppress(UserError):  # what cannot be reached for a while is not lost
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
  """Removes the object of an owner that is gone; DataError: it is at work."""
  remote = mirror.place
  first = remote.read(NAME)
  # Who had this copy, whose lock is ours now, is gone.
  if _parsed(first).get("copy") != mirror.id:
    process = _parsed(first).get("process", "it has just begun")
    logger.info(f"{remote.address} belongs to {process}; waiting {SILENCE:.0f} s for a sign of life")
    deadline = time.monotonic() + SILENCE
    while time.monotonic() < deadline:
      time.sleep(_LOOK)
      found = remote.read(NAME)
      if found is None:
        return
      if found != first:
        raise DataError(
          f"another run is at work in {remote.address} ({process}); wait for it, stop it, or use another "
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
