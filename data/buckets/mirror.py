"""Mirrors a folder of a bucket in a local folder, and tracks which files have changed.

`state.json`, next to the local folder, has for each file the bucket's and the local file system's marks of
its version, so that only changed files are transferred. It is written after the files.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from data import errors, files
from data.buckets.place import Address

logger = logging.getLogger(__name__)

CACHE = "TEXT_ENCODER_CACHE"  # environment variable: the folder of local copies
WORKDIRS, OUTPUTS, READ = "workdirs", "outputs", "read"  # kinds of copies; commands never change READ
_STATE = "state.json"


def cache_directory() -> Path:
  """Returns the folder of local copies of buckets, in `$TEXT_ENCODER_CACHE` or else in ~/.cache."""
  chosen = os.environ.get(CACHE) or Path.home() / ".cache" / "text_encoder_pretraining"
  return Path(chosen).absolute() / "buckets"


def is_chosen() -> bool:
  """Returns whether the user chose the cache with $TEXT_ENCODER_CACHE: other machines may share it."""
  return bool(os.environ.get(CACHE))


def local_name(address: str, kind: str) -> Path:
  """Returns the folder in the cache for the copy of an address; both end in the same name."""
  plain = address.rstrip("/")
  digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
  return cache_directory() / kind / digest / (plain.rpartition("/")[2] or "files")


class Mirror:
  """A local copy of a bucket's folder; a process that changes the copy must hold its lock (`locked`)."""

  def __init__(self, place: Address, kind: str, *, of: str = "") -> None:
    """Creates the local copy's folder, whose path derives from `of` or else the place's address."""
    self.place, self.directory = place, local_name(of or place.address, kind)
    self.is_alone = False  # whether there is nothing at the address yet, so only the copy can be removed
    self._state_file = self.directory.parent / _STATE
    with errors.writing(self.directory):
      self.directory.mkdir(parents=True, exist_ok=True)
    content = files.read_json(self._state_file)
    self.id = str(content.get("id") or secrets.token_hex(8))  # unique among all copies on all machines
    self._known: dict[str, list] = content.get("files", {})  # name -> [mark in the bucket, local mark]
    if "id" not in content:
      self._save()

  @contextlib.contextmanager
  def locked(self, *, advice: str) -> Iterator[None]:
    """Locks the copy within the block; DataError, which ends in `advice`, if another process has the lock."""
    busy = f"another process on this machine is active in {self.place.address}"
    with files.locked(self.directory.parent / "lock", busy=busy, advice=advice):
      yield

  def named(self, line: str) -> str:
    """Returns a message with the address in place of the copy's path, except in a command that removes it."""
    here, address, relative = str(self.directory), self.place.address, os.path.relpath(self.directory)
    remove = f"rm -r {here}"
    parts = [part.replace(here, address) for part in (line.split(remove) if self.is_alone else [line])]
    if os.sep in relative:
      parts = [part.replace(relative, address) for part in parts]
    return remove.join(parts)

  @contextlib.contextmanager
  def naming(self) -> Iterator[None]:
    """Makes log lines and a user's error in the block name the address instead of the copy's path."""

    def name(record: logging.LogRecord) -> bool:
      record.msg, record.args = self.named(record.getMessage()), ()
      return True

    handlers = logging.root.handlers[:]
    for handler in handlers:
      handler.addFilter(name)
    try:
      yield
    except errors.UserError as error:
      raise type(error)(self.named(str(error))) from error
    finally:
      for handler in handlers:
        handler.removeFilter(name)

  @property
  def known(self) -> Collection[str]:
    """Names of the files whose copy was identical to the bucket at the last transfer."""
    return self._known.keys()

  def local(self) -> dict[str, Path]:
    """Returns {name: path} of the local files; a folder that is renamed meanwhile may be missing."""
    walked = os.walk(self.directory)  # unlike rglob, it ignores files that disappear
    paths = sorted(Path(folder) / name for folder, _, names in walked for name in names)
    return {path.relative_to(self.directory).as_posix(): path for path in paths if path.is_file()}

  def pull(self, there: dict[str, str], names: Collection[str]) -> list[str]:
    """Downloads those of the named files that differ from the bucket; returns their names.

    `there` is a result of `Address.files`.
    """
    missing = [name for name in names if self._known.get(name) != [there[name], self._mark(name)]]
    if missing:
      logger.info(f"fetching {errors.counted(len(missing), 'file')} of {self.place.address}")
      self.place.fetch({name: self.directory / name for name in missing})
      self._note({name: there[name] for name in missing})
    return missing

  def keep_only(self, names: Collection[str]) -> None:
    """Removes all local files with other names, and empty folders."""
    for name, path in self.local().items():
      if name not in names:
        path.unlink(missing_ok=True)
    for folder in sorted((path for path in self.directory.rglob("*") if path.is_dir()), reverse=True):
      with contextlib.suppress(OSError):  # not empty
        folder.rmdir()
    self._known = {name: marks for name, marks in self._known.items() if name in names}

  def forget(self, names: Collection[str]) -> None:
    """Marks these files as changed locally, so that they are downloaded again."""
    gone = set(names)
    self._known = {name: marks for name, marks in self._known.items() if name not in gone}
    self._save()

  def has_changed(self, names: Collection[str]) -> bool:
    """Returns whether one of these files has changed locally since the last transfer."""
    return any(self._known.get(name, [None, None])[1] != self._mark(name) for name in names)

  def push(self, names: Collection[str]) -> None:
    """Uploads those of the named files that have changed locally; missing files are skipped.

    A file that changes during the upload counts as changed again. StorageError: the upload failed.
    """
    marks = {name: self._mark(name) for name in names}
    changed = [name for name in names if self._known.get(name, [None, None])[1] != marks[name]]
    if changed:
      self.place.send({name: self.directory / name for name in changed})
      there = self.place.files()
      self._known |= {name: [there.get(name), marks[name]] for name in changed}
      self._save()

  def remove(self, names: Collection[str]) -> None:
    """Removes these files from the bucket."""
    self.place.remove(names)
    self.forget(names)

  def _mark(self, name: str) -> list[int] | None:
    try:
      stat = (self.directory / name).stat()
    except FileNotFoundError:
      return None
    return [stat.st_size, stat.st_mtime_ns]

  def _note(self, there: dict[str, str]) -> None:
    self._known |= {name: [mark, self._mark(name)] for name, mark in there.items()}
    self._save()

  def _save(self) -> None:
    with errors.writing(self._state_file):
      content: dict[str, Any] = {"id": self.id, "address": self.place.address, "files": self._known}
      files.write_atomically(self._state_file, json.dumps(content))
