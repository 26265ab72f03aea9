"""What a command writes at an address: made in a copy here, as any output, and sent when it is whole."""

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
  """Within the block the flag `name` of `asked` is a path here where it was an address; `kind` is its type.

  What is at the address is fetched first: the command finds what it is to continue, replace or refuse. What
  it has made is sent when the block ends well, the file that was written last after all others, so that a
  manifest or a list of digests is there when all is. What is not finished stays here for the same command.
  DataError, StorageError: it cannot be fetched or sent.
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
  # Without the last one nothing there is whole.
  mirror.remove({name for name in mirror.known if name in (*gone, *names[-1:])})
  mirror.push(names[:-1])
  mirror.push(names[-1:])
  logger.info(f"sent {len(names):,} files to {address}")
