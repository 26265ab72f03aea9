"""A local folder that holds the same files as a place in a bucket, and knows which of them have changed.

Beside the folder lies `state.json`: of each file that was fetched or sent what the bucket and what the local
file system said of it, so that only what changed moves. It is written after the files.
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

CACHE = "TEXT_ENCODER_CACHE"  # the environment variable that names the folder of copies
WORKDIRS, OUTPUTS, READ = "workdirs", "outputs", "read"  # kinds of copies; only what is read is never changed
_STATE = "state.json"


def cache_directory() -> Path:
  """Where copies of what lies in buckets are kept: a part of `$TEXT_ENCODER_CACHE`, else of ~/.cache."""
  chosen = os.environ.get(CACHE) or Path.home() / ".cache" / "text_encoder_pretraining"
  return Path(chosen).absolute() / "buckets"


def is_chosen() -> bool:
  """Whether the user names a folder for copies, which may be one that other machines see."""
  return bool(os.environ.get(CACHE))


def local_name(address: str, kind: str) -> Path:
  """The folder that an address is copied to, which has the same last name; `kind` is what for."""
  plain = address.rstrip("/")
  digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
  return cache_directory() / kind / digest / (plain.rpartition("/")[2] or "files")


class Mirror:
  """A copy of a place. One that is to be changed is `locked`; those that are read any process may fetch."""

  def __init__(self, place: Address, kind: str, *, of: str = "") -> None:
    """Makes the folder, one of its own for what it is a copy `of`; StorageError where that cannot be."""
    self.place, self.directory = place, local_name(of or place.address, kind)
    self._state_file = self.directory.parent / _STATE
    with errors.writing(self.directory):
      self.directory.mkdir(parents=True, exist_ok=True)
    content = files.read_json(self._state_file)
    self.id = str(content.get("id") or secrets.token_hex(8))  # no other copy, on whatever machine, has it
    self._known: dict[str, list] = content.get("files", {})  # name: [mark in the bucket, mark here]
    if "id" not in content:
      self._save()

  @contextlib.contextmanager
  def locked(self, *, advice: str) -> Iterator[None]:
    """Holds the copy within the block; DataError, ending in `advice`, where another process does."""
    busy = f"another process on this machine is at work in {self.place.address}"
    with files.locked(self.directory.parent / "lock", busy=busy, advice=advice):
      yield

  def named(self, line: str) -> str:
    """A line with the address instead of the copy's path."""
    here, address = str(self.directory), self.place.address
    return line.replace(os.path.relpath(here), address).replace(here, address)

  @contextlib.contextmanager
  def naming(self) -> Iterator[None]:
    """Within the block log lines and a user's error name the address instead of the copy's path."""

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
    """Names of the files that were the same here and there when they were last looked at."""
    return self._known.keys()

  def local(self) -> dict[str, Path]:
    """{name: path} of the files that are here; a folder renamed meanwhile is seen by the next look."""
    walked = os.walk(self.directory)  # which passes over what is gone, as `rglob` does not
    paths = sorted(Path(folder) / name for folder, _, names in walked for name in names)
    return {path.relative_to(self.directory).as_posix(): path for path in paths if path.is_file()}

  def pull(self, there: dict[str, str], names: Collection[str]) -> list[str]:
    """Fetches the files of those names that are not here as they are `there`, a result of `Address.files`.

    Returns their names.
    """
    missing = [name for name in names if self._known.get(name) != [there[name], self._mark(name)]]
    if missing:
      logger.info(f"fetching {len(missing):,} files of {self.place.address}")
      self.place.fetch({name: self.directory / name for name in missing})
      self._note({name: there[name] for name in missing})
    return missing

  def keep_only(self, names: Collection[str]) -> None:
    """Removes what is here under other names."""
    for name, path in self.local().items():
      if name not in names:
        path.unlink(missing_ok=True)
    for folder in sorted((path for path in self.directory.rglob("*") if path.is_dir()), reverse=True):
      with contextlib.suppress(OSError):  # not empty
        folder.rmdir()
    self._known = {name: marks for name, marks in self._known.items() if name in names}

  def forget(self, names: Collection[str]) -> None:
    """Takes the files of those names as changed here: they are fetched again."""
    gone = set(names)
    self._known = {name: marks for name, marks in self._known.items() if name not in gone}
    self._save()

  def has_changed(self, names: Collection[str]) -> bool:
    """Whether one of the files of those names has changed here since it was fetched or sent."""
    return any(self._known.get(name, [None, None])[1] != self._mark(name) for name in names)

  def push(self, names: Collection[str]) -> None:
    """Sends the files of those names that have changed here; one that is gone is left out.

    A file that grows meanwhile counts as changed again. StorageError: they cannot be sent.
    """
    marks = {name: self._mark(name) for name in names}
    changed = [name for name in names if self._known.get(name, [None, None])[1] != marks[name]]
    if changed:
      self.place.send({name: self.directory / name for name in changed})
      there = self.place.files()
      self._known |= {name: [there.get(name), marks[name]] for name in changed}
      self._save()

  def remove(self, names: Collection[str]) -> None:
    """Removes files of those names from the bucket."""
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
