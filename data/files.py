"""Files and directories that are there in full or not at all, and digests of what they hold.

Everything is written under another name beside the final one and renamed, so that a kill leaves what was
there before. A leftover of a killed process ends in `.part` or `.old`.
"""

import contextlib
import ctypes
import errno
import fcntl
import gzip
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from data import errors

Path = str | os.PathLike

# Matches the names of a folder's files that are hidden, or that a killed process left.
UNFINISHED = r"(.*/)?\.|.*\.part(/|$)"


def is_address(value: object) -> bool:
  """Whether it is an address such as s3://bucket/run; as a path it would be a local folder called 's3:'."""
  is_path = isinstance(value, os.PathLike)  # which makes one slash of two
  return isinstance(value, str | os.PathLike) and bool(
    re.search(r"^\w+:/" if is_path else "://", os.fspath(value))
  )


def address_problem(name: str, value: object) -> str | None:
  """The line that refuses an address where only a path can be; None: it is none. `name` is the flag's."""
  if not is_address(value):
    return None
  return (
    f"{name}={value}: expected a path, found an address; mount the bucket (gcsfuse, mount-s3) on every host "
    "and give the path there"
  )


def write_atomically(path: Path, content: bytes | str) -> None:
  """Writes a file that is there in full or not at all; text is encoded as UTF-8."""
  with whole_file(path) as aside:
    aside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: Path, *, aside: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """Where the block writes a file that takes its name when the block ends well, and goes when it does not.

  That is beside it, or `aside`, on the same file system.
  """
  aside = aside or aside_of(path)
  try:
    with full_disk_at(path):
      yield aside
    aside.replace(path)
  finally:
    aside.unlink(missing_ok=True)


@contextlib.contextmanager
def full_disk_at(path: Path) -> Iterator[None]:
  """Makes an OSError with `path` of what writers raise on a full disk without saying where."""
  try:
    yield
  except Exception as error:
    if not errors.is_full_disk(error) or getattr(error, "filename", None):
      raise
    code = getattr(error, "errno", None) or errno.ENOSPC
    raise OSError(code, errors.reason(error), os.fspath(path)) from error


def aside_of(path: Path) -> pathlib.Path:
  """Returns a new name beside `path`: processes of several machines may write the same file at one time."""
  path = pathlib.Path(path)
  return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")


def this_process() -> str:
  """Who holds something, for others to read: 'process 7 on host since 2026-11-22 17:00:00'."""
  return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"


@contextlib.contextmanager
def whole_directory(target: Path, *, replace: bool = False) -> Iterator[pathlib.Path]:
  """A new directory beside `target` that takes its name when the block ends well, and goes when it does not.

  Directories above `target` are made. A file, or a directory with something in it, must not be there unless
  `replace`; then the old one stays until the new one is whole. What killed processes left beside `target` is
  removed first. OSError: it cannot be made or renamed; `errors.writing` makes one line of that.
  """
  target = pathlib.Path(target).absolute()
  target.parent.mkdir(parents=True, exist_ok=True)
  _clear_leftovers(target)
  # Not tempfile.mkdtemp, whose directories nobody else may read.
  aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
  old = aside.with_suffix(".old")
  aside.mkdir()
  with _claimed(aside):
    try:
      with full_disk_at(target):
        yield aside
      if not (replace and os.path.lexists(target)):
        aside.rename(target)
      elif not _exchange(aside, target):
        target.rename(old)  # killed here, the next start puts it back
        try:
          aside.rename(target)
        except OSError:
          old.rename(target)
          raise
    finally:
      _remove(aside)
      _remove(old)


def _exchange(one: pathlib.Path, other: pathlib.Path) -> bool:
  """Exchanges two names in one step, which no kill divides; False if this (file) system cannot do that."""
  rename = getattr(ctypes.CDLL(None), "renameat2", None)
  here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
  return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@contextlib.contextmanager
def _claimed(directory: pathlib.Path) -> Iterator[bool]:
  """Holds a lock on a directory, which a killed process loses; yields False if another process holds it."""
  descriptor = os.open(directory, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # also on a file system without locks: whose directory it is, nobody can say
      yield False
    else:
      yield True
  finally:
    os.close(descriptor)


def _clear_leftovers(target: pathlib.Path) -> None:
  """Removes what killed processes left of `whole_directory`; restores a directory without a successor."""
  name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(part|old)")
  left = [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
  for path in sorted(left):  # .old before .part
    unfinished = path.with_suffix(".part")  # if a process is at work, it has the lock on this one
    claim = _claimed(unfinished) if unfinished.exists() else contextlib.nullcontext(True)
    with contextlib.suppress(FileNotFoundError), claim as is_left:
      if is_left and path.suffix == ".old" and not os.path.lexists(target):
        path.rename(target)
      elif is_left:
        _remove(path)


def _remove(path: pathlib.Path) -> None:
  """Removes a directory with its contents, a file or a link, if it is there."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def refuse_others(output: Path, *, maker: str = "", mark: str = "") -> None:
  """Raises ConfigError, before any work, if --output is a file, or holds what we did not make.

  `mark` is a file or directory by which the work of a `maker` is known; without one nothing may be there.
  """
  output = pathlib.Path(output)
  if output.is_symlink() and not output.exists():
    raise errors.ConfigError(f"--output={output} is a link to nothing; name a directory")
  if output.exists() and not output.is_dir():
    raise errors.ConfigError(f"--output={output} is a file; name a directory")
  if output.is_dir() and any(output.iterdir()) and not (mark and (output / mark).exists()):
    made = f"files that no {maker} made" if maker else "files already"
    raise errors.ConfigError(f"--output={output} holds {made}; name a new or empty directory")


@contextlib.contextmanager
def locked(path: Path, *, busy: str, advice: str) -> Iterator[None]:
  """Holds the lock file `path` within the block; a killed owner's lock is gone with it.

  The file says who holds it, and goes when the block ends. DataError, `busy` with the owner and then
  `advice`, where another process holds it. On a file system that knows no locks nobody is refused.
  """
  path = pathlib.Path(path)
  while True:
    with open(path, "a+", encoding="utf-8") as file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "it has just begun"
        raise errors.DataError(f"{busy} ({owner}); {advice}") from error
      except OSError:
        pass
      if not _is_at(file.fileno(), path):
        continue  # its owner removed it after it was opened here
      file.truncate(0)
      file.write(this_process() + "\n")
      file.flush()
      try:
        yield
      finally:
        path.unlink(missing_ok=True)
      return


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), path.stat())
  except FileNotFoundError:
    return False


def make_writable(directory: Path, *, flag: str) -> None:
  """Makes the directory that `flag` names and tries to write in it; StorageError if that is not possible."""
  directory = pathlib.Path(directory)
  try:
    directory.mkdir(parents=True, exist_ok=True)
    # A name of its own for every process: containers that share a file system often share their process ids.
    handle, probe = tempfile.mkstemp(prefix=".writable.", dir=directory)
    os.close(handle)
    pathlib.Path(probe).unlink(missing_ok=True)  # a run that has begun here clears such names away
  except OSError as error:
    raise errors.StorageError(
      f"cannot write to {directory} ({errors.reason(error)}); give another {flag} or make it writable"
    ) from error


def read_text(path: Path) -> str:
  """Returns the text of a UTF-8 file, unpacked if its name ends in '.gz', without a byte-order mark.

  DataError: it cannot be read or unpacked, or holds other bytes than UTF-8 text; the line is named.
  """
  with errors.reading(path, advice="copy it again"):
    content = pathlib.Path(path).read_bytes()
    if str(path).endswith(".gz"):
      content = gzip.decompress(content)
  if (position := content.find(b"\0")) >= 0:
    line = content.count(b"\n", 0, position) + 1
    raise errors.DataError(f"{path}:{line}: a NUL byte, expected text; copy it again")
  try:
    return content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = content.count(b"\n", 0, error.start) + 1
    raise errors.DataError(f"{path}:{line}: not UTF-8 ({error.reason}); convert the file to UTF-8") from error


def read_json(path: Path) -> dict[str, Any]:
  """Returns the object in a JSON file; {} where there is none, it cannot be read or holds something else."""
  try:
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}


def write_json(path: Path, value: Any, *, sort_keys: bool = False) -> None:
  """Writes a JSON file, indented, that is there in full or not at all."""
  write_atomically(path, json.dumps(value, indent=1, sort_keys=sort_keys) + "\n")


def sha256(path: Path) -> str:
  """The sha256 of a file's bytes, in hexadecimal."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: Any) -> str:
  """The sha256 of a JSON value, the same on every machine."""
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def short_names(paths: Sequence[pathlib.Path]) -> list[str]:
  """The shortest ends of the paths by which no two are the same; a number where paths are equal."""
  parts = [path.absolute().parts for path in paths]
  for length in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-length:]) for part in parts]
    if len(set(names)) == len(names):
      return names
  return [f"{part[-1]} ({number})" for number, part in enumerate(parts, 1)]
