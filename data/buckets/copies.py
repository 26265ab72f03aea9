"""What a command reads of a bucket, brought here: only what has changed since, and digests are checked.

A copy is never changed but by the next fetch, and may be removed whenever nothing reads it.
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
  """The copy of a folder.

  Args:
    address: of the folder, which `flag` names, for messages.
    wanted: gives of the names of all files those to fetch.
    damaged: gives of the names that were fetched those whose content is not what it should be; they are
      fetched once more.

  DataError: nothing is there, it cannot be read, or it is damaged there.
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
        advice = "bring them back from a copy"
        raise DataError(f"{mirror.place}: files there are not those that were written (sha256); {advice}")
  return mirror.directory


def matching(pattern: str, *, flag: str) -> list[Path]:
  """The copies of the files that match a pattern of globs at an address, [] if none does."""
  mirror, names = _matched(pattern, flag)
  mirror.pull(names, names)
  return [mirror.directory / name for name in sorted(names)]


def is_there(pattern: str, *, flag: str) -> bool:
  """Whether a file matches a pattern of globs at an address; nothing is fetched."""
  return bool(_matched(pattern, flag)[1])


def _matched(pattern: str, flag: str) -> tuple[Mirror, dict[str, str]]:
  parts = pattern.rstrip("/").split("/")
  plain = next((at for at, part in enumerate(parts) if set(part) & set(_MAGIC)), len(parts) - 1)
  mirror = Mirror(Address("/".join(parts[:plain]), flag=flag), READ)
  return mirror, mirror.place.files("/".join(parts[plain:]))


def local(path: str, *, flag: str) -> str:
  """The path itself; of an address the copy of that file, or of that folder with all its files.

  DataError: nothing is there, or it cannot be read.
  """
  if not files.is_address(path):
    return path
  return str(next(iter(matching(path, flag=flag)), None) or folder(path, flag=flag))


def records(address: str, *, flag: str, only: Collection[str] = ()) -> Path:
  """The copy of a directory of prepared records, each of its shards held against the manifest's digest.

  Of its files `only` some, where names are given. DataError: the preparation is missing or unfinished, or
  its files are damaged in the bucket.
  """

  def wanted(there: Collection[str]) -> Collection[str]:
    if manifest.NAME not in there:
      advice = f"make them with `python -m data.prepare --source=... --output={address}`"
      raise DataError(f"{flag}={address}: no prepared records there; {advice}")
    return [name for name in there if not name.startswith("work/") and (not only or name in only)]

  def damaged(here: Path, fetched: Collection[str]) -> list[str]:
    splits = manifest.read(here).splits.values()
    digests = {shard.name: shard.sha256 for split in splits for shard in split.shards}
    return [name for name in fetched if name in digests and files.sha256(here / name) != digests[name]]

  return folder(address, flag=flag, wanted=wanted, damaged=damaged)
