"""Lists, downloads, uploads and removes files in a folder of a bucket; all errors become UserErrors.

fsspec chooses the library of a scheme (s3fs, gcsfs, adlfs); that library reads credentials, endpoints and
profiles from the environment and from its own files.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data import errors, files
from data.errors import ConfigError, DataError, StorageError, UserError

# Fields of libraries' descriptions of an object that change with its content.
_MARKS = ("size", "ETag", "etag", "md5Hash", "generation", "mtime", "created", "LastModified")
_ADVICE = "check the name of the bucket, its rights, and the credentials and endpoint of this machine"


class Address:
  """A folder at an address; names of its files are relative, with '/'."""

  def __init__(self, address: str, *, flag: str) -> None:
    """Loads the library for the address; does not connect.

    `flag` is the flag or field with the address, for messages. ConfigError: the scheme is unknown or its
    library is not installed.
    """
    import fsspec  # here: it takes a quarter of a second, which most commands can save

    self.address, self.flag = address.rstrip("/"), flag
    try:
      self._system, self._root = fsspec.core.url_to_fs(self.address)
    except (ImportError, ValueError) as error:
      advice = "install its library (requirements-buckets.txt), or mount the bucket"
      raise ConfigError(f"{flag}={address}: {errors.reason(error)}; {advice}") from error
    self._root = self._root.rstrip("/")

  def __str__(self) -> str:
    return f"{self.flag}={self.address}"

  def files(self, pattern: str = "") -> dict[str, str]:
    """Returns {name: mark that changes with the content} of all files, or of those that match a glob.

    {} if there are none. DataError: the bucket does not exist or cannot be read.
    """
    with self._errors("read", DataError):
      self._system.invalidate_cache()
      if pattern:
        matches = self._system.glob(self._path(pattern), detail=True)
        entries = {path: info for path, info in matches.items() if info.get("type") != "directory"}
      else:
        entries = self._system.find(self._root, detail=True)
    start = len(self._root) + 1
    return {path[start:]: _mark(info) for path, info in entries.items() if len(path) > start}

  def read(self, name: str) -> bytes | None:
    """Returns the content of a small file, None if it does not exist; DataError if it cannot be read."""
    with self._errors("read", DataError):
      self._system.invalidate_cache()
      try:
        return self._system.cat_file(self._path(name))
      except FileNotFoundError:
        return None

  def write(self, name: str, content: bytes, *, is_new: bool = False) -> bool:
    """Writes a small file and returns True; with `is_new` an existing file stays, and it returns False.

    StorageError: it cannot be written.
    """
    with self._errors("written"):
      try:
        self._system.pipe_file(self._path(name), content, mode="create" if is_new else "overwrite")
      except FileExistsError:
        return False
    return True

  def fetch(self, wanted: Mapping[str, Path]) -> None:
    """Downloads files to local paths, several at a time; each is written completely or not at all."""
    with contextlib.ExitStack() as stack:
      with errors.writing(f"the copy of {self.address}"):
        for path in wanted.values():
          path.parent.mkdir(parents=True, exist_ok=True)
      asides = [str(stack.enter_context(files.whole_file(path))) for path in wanted.values()]
      with self._errors("read", DataError):
        self._system.get([self._path(name) for name in wanted], asides)

  def send(self, sent: Mapping[str, Path]) -> None:
    """Uploads local files, several at a time; replaces existing ones."""
    with self._errors("written"):
      self._system.put([str(path) for path in sent.values()], [self._path(name) for name in sent])

  def remove(self, names: Iterable[str]) -> None:
    """Removes files; a missing file is no error."""
    if paths := [self._path(name) for name in names]:
      with self._errors("written"), contextlib.suppress(FileNotFoundError):
        self._system.rm(paths)

  def _path(self, name: str) -> str:
    return f"{self._root}/{name}"

  @contextlib.contextmanager
  def _errors(self, done: str, kind: type[UserError] = StorageError) -> Iterator[None]:
    """Turns any error of a library (OSError, botocore, aiohttp, google.auth) into an error of `kind`."""
    try:
      yield
    except Exception as error:
      reason = errors.named_reason(error, most=200)
      raise kind(f"{self} cannot be {done} ({reason}); {_ADVICE}") from error


def _mark(info: Mapping[str, Any]) -> str:
  return json.dumps({name: str(info[name]) for name in _MARKS if info.get(name) is not None}, sort_keys=True)
