"""Writes an output to an address: first to a local copy, which is uploaded when it is complete."""

import argparse
import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from data import files
from data.buckets.mirror import OUTPUTS, Mirror
from data.buckets.place import Address

logger = logging.getLogger(__name__)

_NOT_SENT = re.compile(rf"lock$|{files.UNFINISHED}|.*\.(parts|done)(/|$)")


@contextlib.contextmanager
def sent(
  asked: argparse.Namespace,
  name: str = "output",
  *,
  is_file: bool = False,
  kind: Callable[[str], Any] = str,
) -> Iterator[None]:
  """Within the block, replaces an address in the flag `name` with a local path, and uploads at its end.

  `kind` is the flag's type. Existing files are downloaded first, so that the command can continue or refuse
  them. If the block succeeds, its files are uploaded; the file that was written last, such as a manifest,
  is also uploaded last. Unfinished files stay in the copy for the same command. DataError, StorageError: the
  download or upload failed.
  """
  address = getattr(asked, name, "")
  if not files.is_address(address):
    yield
    return
  folder, _, last_name = address.rstrip("/").rpartition("/")
  place = Address(folder if is_file else address, flag=f"--{name}")
  mirror = Mirror(place, OUTPUTS, of=address)
  with mirror.locked(advice=f"wait for it, or name another --{name}"), mirror.naming():
    there = place.files(last_name if is_file else "")
    mirror.is_alone = not there
    for gone in {*mirror.known} - {*there}:
      (mirror.directory / gone).unlink(missing_ok=True)
    mirror.forget({*mirror.known} - {*there})
    mirror.pull(there, there)
    setattr(asked, name, kind(str(mirror.directory / last_name if is_file else mirror.directory)))
    yield
    _send(mirror, address)


def _send(mirror: Mirror, address: str) -> None:
  made = {name: path for name, path in mirror.local().items() if not _NOT_SENT.match(name)}
  names = sorted(made, key=lambda name: (made[name].stat().st_mtime_ns, name))
  gone = {name for name in mirror.known if not _NOT_SENT.match(name)} - {*names}
  if not gone and not mirror.has_changed(names):
    return
  # Removed first: the last file marks the output as complete.
  mirror.remove({name for name in mirror.known if name in (*gone, *names[-1:])})
  mirror.push(names[:-1])
  mirror.push(names[-1:])
  logger.info(f"{address}: sent files: {len(names):,}")
