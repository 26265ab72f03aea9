"""Downloads the inputs of a command from a bucket; only changed files, and digests are checked.

Only the next download changes a copy; it can be removed whenever no command reads it.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from data import files, manifest
from data.buckets.mirror import READ, Mirror
from data.buckets.place import Address
from data.errors import DataError

_MAGIC = "*?["


def folder(
  address: str,
  *,
  flag: str,
  wanted: Callable[[Collection[str]], Collection[str]] = lambda there: there,
  damaged: Callable[[Path, Collection[str]], Collection[str]] = lambda here, fetched: (),
) -> Path:
  """Returns the local copy of a folder, after downloading new and changed files.

  Args:
    address: of the folder; messages name it with `flag`.
    wanted: selects the names to download from the names of all files.
    damaged: selects, from the downloaded names, files with wrong content; they are downloaded once more.

  DataError: the folder is empty, cannot be read, or has damaged files.
  """
  mirror = Mirror(Address(address, flag=flag), READ)
  there = mirror.place.files()
  names = wanted(there)
  if not names:
    raise DataError(f"{mirror.place}: nothing is there")
  with mirror.naming():
    if again := damaged(mirror.directory, mirror.pull(there, names)):
      mirror.forget(again)
      mirror.pull(there, again)
      if damaged(mirror.directory, again):
        mirror.forget(again)
        advice = "restore them from a copy"
        raise DataError(f"{mirror.place}: files there are not those that were written (sha256); {advice}")
    mirror.keep_only(there)  # a file that was removed there may come before another, as a.tsv before a.tsv.gz
  return mirror.directory


def matching(pattern: str, *, flag: str) -> list[Path]:
  """Downloads the files that match a glob at an address; returns their local copies."""
  mirror, names = _matched(pattern, flag)
  mirror.pull(names, names)
  return [mirror.directory / name for name in sorted(names)]


def is_there(pattern: str, *, flag: str) -> bool:
  """Returns whether a file matches a glob at an address; downloads nothing."""
  return bool(_matched(pattern, flag)[1])


def _matched(pattern: str, flag: str) -> tuple[Mirror, dict[str, str]]:
  parts = pattern.rstrip("/").split("/")
  plain = next((at for at, part in enumerate(parts) if set(part) & set(_MAGIC)), len(parts) - 1)
  mirror = Mirror(Address("/".join(parts[:plain]), flag=flag), READ)
  return mirror, mirror.place.files("/".join(parts[plain:]))


def local(path: str, *, flag: str) -> str:
  """Returns a local path: `path` itself or, for an address, the copy of that file or folder.

  DataError: the address does not exist or cannot be read.
  """
  if not files.is_address(path):
    return path
  return str(next(iter(matching(path, flag=flag)), None) or folder(path, flag=flag))


def records(address: str, *, flag: str, only: Collection[str] = ()) -> Path:
  """Returns the copy of a directory of prepared records; shards are checked against the manifest.

  `only` selects files by name; () is all. DataError: the preparation is missing or unfinished, or files in
  the bucket are damaged.
  """

  def wanted(there: Collection[str]) -> Collection[str]:
    if manifest.NAME not in there:
      advice = f"to make them:\n  python -m data.prepare --source=... --output={address}"
      raise DataError(f"{flag}={address}: no prepared records there; {advice}")
    return [name for name in there if not name.startswith("work/") and (not only or name in only)]

  def damaged(here: Path, fetched: Collection[str]) -> list[str]:
    splits = manifest.read(here).splits.values()
    digests = {shard.name: shard.sha256 for split in splits for shard in split.shards}
    return [name for name in fetched if name in digests and files.sha256(here / name) != digests[name]]

  return folder(address, flag=flag, wanted=wanted, damaged=damaged)
