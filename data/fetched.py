"""Fetches inputs from addresses of fsspec (`gs://`, `s3://`, `https://`, `memory://`) into a cache folder.

A copy's folder is named by the address and by the state of its files there, so a file that changes is fetched
anew into another folder, and two commands may fetch the same files. Nothing else is kept beside the copies:
the cache may be removed whenever no command reads it.
"""

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data import errors, files, manifest
from data.errors import ConfigError, DataError, StorageError, UserError

logger = logging.getLogger(__name__)

CACHE = "TEXT_ENCODER_CACHE"  # environment variable: the folder of the copies
_AT_ONCE = 32  # files; what is fetched is kept when a later file fails
_MAGIC = "*?["
# Fields of libraries' descriptions of an object that change with its content.
_MARKS = ("size", "ETag", "etag", "md5Hash", "generation", "mtime", "created", "LastModified")
_ADVICE = "check the name of the bucket, its rights, and the credentials and endpoint of this machine"


def cache_directory() -> Path:
  """Returns the folder of the copies, in `$TEXT_ENCODER_CACHE` or else in ~/.cache."""
  chosen = os.environ.get(CACHE) or Path.home() / ".cache" / "text_encoder_pretraining"
  return Path(chosen).absolute() / "fetched"


class Address:
  """A folder at an address; names are relative, with "/". Errors of its library are UserErrors."""

  def __init__(self, address: str, *, flag: str) -> None:
    """Loads the library for the address; does not connect.

    `flag` is the flag or field with the address, for messages. ConfigError: the scheme is unknown or its
    library is not installed.
    """
    import fsspec.config  # here: it takes a quarter of a second, which most commands can save

    # With these, gcsfs asks for the kind of the bucket, and warns at every file where it may not know.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # TensorStore writes checkpoints behind gcsfs's back, so a list of files that gcsfs keeps would be wrong.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    self._address, self._shown = address.rstrip("/"), f"{flag}={address.rstrip('/')}"
    try:
      self._system, self._root = fsspec.core.url_to_fs(self._address)
    except (ImportError, ValueError) as error:
      advice = "install its library (requirements-buckets.txt), or mount the bucket"
      raise ConfigError(f"{flag}={address}: {errors.reason(error)}; {advice}") from error
    self._root = self._root.rstrip("/")

  def __str__(self) -> str:
    return self._shown

  def names(self, pattern: str = "") -> dict[str, str]:
    """Returns {name: mark that changes with the content} of all files, or of those that match a glob.

    {} if there are none. DataError: the bucket does not exist or cannot be read.
    """
    with self._errors("read", DataError):
      self._system.invalidate_cache()
      if pattern:
        matches = self._system.glob(f"{self._root}/{pattern}", detail=True)
        entries = {path: info for path, info in matches.items() if info.get("type") != "directory"}
      else:
        entries = self._system.find(self._root, detail=True)
    start = len(self._root) + 1
    found = {path[start:]: _mark(info) for path, info in entries.items() if len(path) > start}
    if outside := [name for name in found if ".." in name.split("/")]:
      raise DataError(f"{self}: {outside[0]!r} would be written outside of its folder; rename it")
    return found

  def fetch(self, names: Mapping[str, str], digests: Mapping[str, str] | None = None) -> Path:
    """Returns a local folder with these files, after fetching those that are missing in it.

    Args:
      names: {name: mark}, a part of what `names` returned.
      digests: {name: sha256} of files whose content is known.

    DataError: a file cannot be read, or is not the one that was written (sha256).
    """
    state = files.digest_json([self._address, dict(sorted(names.items()))])[:16]
    folder = cache_directory() / state / (self._address.rpartition("/")[2] or "files")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
      logger.info(f"fetching {errors.counted(len(missing), 'file')} of {self._address}")
    for start in range(0, len(missing), _AT_ONCE):
      self._get(folder, missing[start : start + _AT_ONCE], digests or {})
    return folder

  def get(self, names: Sequence[str], folder: Path) -> None:
    """Fetches files into a folder; DataError if one cannot be read."""
    self._get(folder, names, {})

  def put(self, local: Mapping[str, Path]) -> None:
    """Writes local files, {name: path}, to the address; StorageError if one cannot be written."""
    with self._errors("written"):
      self._system.put([str(path) for path in local.values()], [f"{self._root}/{name}" for name in local])

  def _get(self, folder: Path, names: Sequence[str], digests: Mapping[str, str]) -> None:
    with contextlib.ExitStack() as stack:
      with errors.writing(folder):
        for name in names:
          (folder / name).parent.mkdir(parents=True, exist_ok=True)
      asides = [stack.enter_context(files.whole_file(folder / name)) for name in names]
      with self._errors("read", DataError):
        self._system.get([f"{self._root}/{name}" for name in names], [str(aside) for aside in asides])
      for name, aside in zip(names, asides):
        if name in digests and files.sha256(aside) != digests[name]:
          advice = "restore it from a copy"
          raise DataError(f"{self}: {name} is not the file that was written (sha256); {advice}")

  @contextlib.contextmanager
  def _errors(self, done: str, kind: type[UserError] = StorageError) -> Iterator[None]:
    """Turns any error of a library (OSError, botocore, aiohttp, google.auth) into an error of `kind`."""
    try:
      yield
    except Exception as error:
      reason = errors.named_reason(error, most=200)
      raise kind(f"{self} cannot be {done} ({reason}); {_ADVICE}") from error


def matching(pattern: str, *, flag: str) -> list[Path]:
  """Fetches the files that match a glob at an address; returns their local copies."""
  parts = pattern.rstrip("/").split("/")
  plain = next((at for at, part in enumerate(parts) if set(part) & set(_MAGIC)), len(parts) - 1)
  place = Address("/".join(parts[:plain]), flag=flag)
  names = place.names("/".join(parts[plain:]))
  folder = place.fetch(names) if names else Path()
  return [folder / name for name in sorted(names)]


def local(path: str, *, flag: str) -> str:
  """Returns a local path: `path` itself or, for an address, the copy of that file or folder.

  DataError: the address does not exist or cannot be read.
  """
  if not files.is_address(path):
    return path
  if found := matching(path, flag=flag):
    return str(found[0])
  place = Address(path, flag=flag)
  if not (names := place.names()):
    raise DataError(f"{place}: nothing is there")
  return str(place.fetch(names))


def records(address: str, *, flag: str, only: Collection[str] = ()) -> Path:
  """Returns the copy of a directory of prepared records; shards are checked against the manifest.

  `only` selects files by name; () is all. DataError: the preparation is missing or unfinished, or files in
  the bucket are damaged.
  """
  place = Address(address, flag=flag)
  names = {name: mark for name, mark in place.names().items() if not name.startswith("work/")}
  if manifest.NAME not in names:
    advice = "prepare them and copy them there:\n  python -m data.prepare --source=... --output=DIRECTORY"
    raise DataError(f"{place}: no prepared records there; {advice}")
  splits = manifest.read(place.fetch({manifest.NAME: names[manifest.NAME]})).splits.values()
  digests = {shard.name: shard.sha256 for split in splits for shard in split.shards}
  return place.fetch({name: names[name] for name in names if not only or name in only}, digests)


def _mark(info: Mapping[str, Any]) -> str:
  return json.dumps({name: str(info[name]) for name in _MARKS if info.get(name) is not None}, sort_keys=True)
