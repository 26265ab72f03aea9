"""Files and directories that are written completely or not at all; digests; small JSON and text files.

Everything is written under a temporary name next to the final one and then renamed, so a killed process
leaves the old content intact. Names that a killed process leaves behind end in `.part` or `.old`.
"""

import contextlib
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

# Matches paths inside a folder that are hidden, or that a killed process left behind.
UNFINISHED = r"(.*/)?\.|.*\.part(/|$)"


def is_address(value: object) -> bool:
  """Returns whether a value is an address such as s3://bucket/run, not a local path."""
  is_path = isinstance(value, os.PathLike)  # pathlib turns '//' into '/'
  return isinstance(value, str | os.PathLike) and bool(
    re.search(r"^\w+:/" if is_path else "://", os.fspath(value))
  )


def address_problem(name: str, value: object) -> str | None:
  """Returns the error message for an address where flag `name` needs a path; None if it is a path."""
  if not is_address(value):
    return None
  return (
    f"{name}={value}: expected a path, found an address; use a path here, and copy the "
    "files from or to the bucket\n  gcloud storage cp -r FROM TO"
  )


def write_atomically(path: Path, content: bytes | str) -> None:
  """Writes a file completely or not at all; text is encoded as UTF-8."""
  with whole_file(path) as aside:
    aside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: Path, *, aside: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """Yields a temporary path, which is renamed to `path` if the block succeeds and removed if it fails.

  The temporary path is next to `path`, or `aside`, which must be on the same file system.
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
  """Turns an error of a full disk that names no file into an OSError that names `path`."""
  try:
    yield
  except Exception as error:
    if not errors.is_full_disk(error) or getattr(error, "filename", None):
      raise
    code = getattr(error, "errno", None) or errno.ENOSPC
    raise OSError(code, errors.reason(error), os.fspath(path)) from error


def aside_of(path: Path) -> pathlib.Path:
  """Returns a new temporary path next to `path`, unique because several machines may write the same file."""
  path = pathlib.Path(path)
  return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")


def this_process() -> str:
  """Returns a description of this process for lock files: 'process 7 on host since 2026-11-22 17:00:00'."""
  return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"


@contextlib.contextmanager
def whole_directory(target: Path, *, replace: bool = False) -> Iterator[pathlib.Path]:
  """Yields a temporary directory, renamed to `target` if the block succeeds and removed if it fails.

  Parent directories are created. Without `replace`, `target` must not exist or must be an empty directory;
  with it, the old content stays until the new one is complete. What killed processes left next to `target`
  is removed first. OSError: the directory cannot be created or renamed (see `errors.writing`).
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
      if replace and os.path.lexists(target):
        target.rename(old)  # killed here, the next start puts it back
      aside.rename(target)
    finally:
      if os.path.lexists(old) and not os.path.lexists(target):
        old.rename(target)
      _remove(aside)
      _remove(old)


@contextlib.contextmanager
def _claimed(directory: pathlib.Path) -> Iterator[bool]:
  """Locks a directory until the block or the process ends; yields False if another process has the lock."""
  descriptor = os.open(directory, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # also on a file system without locks, where the owner is unknown
      yield False
    else:
      yield True
  finally:
    os.close(descriptor)


def _clear_leftovers(target: pathlib.Path) -> None:
  """Removes what killed calls of `whole_directory` left; restores an old directory that was not replaced."""
  name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(part|old)")
  left = [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
  for path in sorted(left):  # .old before .part
    unfinished = path.with_suffix(".part")  # a process that still writes has the lock on this one
    claim = _claimed(unfinished) if unfinished.exists() else contextlib.nullcontext(True)
    with contextlib.suppress(FileNotFoundError), claim as is_left:
      if is_left and path.suffix == ".old" and not os.path.lexists(target):
        path.rename(target)
      elif is_left:
        _remove(path)


def _remove(path: pathlib.Path) -> None:
  """Removes a directory with its contents, a file or a link; a missing path is no error."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def refuse_others(output: Path, *, maker: str = "", mark: str = "", flag: str = "--output") -> None:
  """Raises ConfigError if --output is a file, or a directory with files that `maker` did not write.

  `flag` is the name of the output's flag, if it is not --output.
  `mark` is a file or directory that every output of `maker` has; without it the directory must be empty.
  """
  output = pathlib.Path(output)
  if output.is_symlink() and not output.exists():
    raise errors.ConfigError(f"{flag}={output} is a link to nothing; name a directory")
  if output.exists() and not output.is_dir():
    raise errors.ConfigError(f"{flag}={output} is a file; name a directory")
  if output.is_dir() and any(output.iterdir()) and not (mark and (output / mark).exists()):
    made = f"files that no {maker} made" if maker else "files already"
    raise errors.ConfigError(f"{flag}={output} holds {made}; name a new or empty directory")


@contextlib.contextmanager
def locked(path: Path, *, busy: str, advice: str, is_shared: bool = False) -> Iterator[None]:
  """Locks the file `path` within the block; the system releases the lock of a killed process.

  The file names the owner and is removed when the block ends; a shared lock leaves it, and only keeps owners
  away. DataError, made of `busy`, the owner and `advice`: another process has the lock. On a file system
  without locks every process proceeds.
  """
  path = pathlib.Path(path)
  while True:
    with open(path, "a+", encoding="utf-8") as file:
      try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
      except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "it has just begun"
        raise errors.DataError(f"{busy} ({owner}); {advice}") from error
      except OSError:
        pass
      if not _is_at(file.fileno(), path):
        continue  # its owner removed it after it was opened here
      if is_shared:
        yield
        return
      file.truncate(0)
      file.write(this_process() + "\n")
      file.flush()
      os.fsync(file.fileno())  # other hosts read it
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
  """Creates the directory that `flag` names and tests writing to it; StorageError if that fails."""
  directory = pathlib.Path(directory)
  try:
    directory.mkdir(parents=True, exist_ok=True)
    # A random name: containers on one file system often have the same process ids.
    handle, probe = tempfile.mkstemp(prefix=".writable.", dir=directory)
    os.close(handle)
    pathlib.Path(probe).unlink(missing_ok=True)  # a run that begins here at the same time removes such names
  except OSError as error:
    raise errors.StorageError(
      f"cannot write to {directory} ({errors.reason(error)}); give another {flag} or make it writable"
    ) from error


def read_text(path: Path) -> str:
  """Returns the text of a UTF-8 file without a byte-order mark; '.gz' files are unpacked.

  DataError: the file cannot be read or unpacked, or is not UTF-8 text; the message names the line.
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
  """Returns the object in a JSON file; {} if the file is missing, unreadable, or holds no object."""
  try:
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}


def write_json(path: Path, value: Any, *, sort_keys: bool = False) -> None:
  """Writes an indented JSON file, completely or not at all."""
  write_atomically(path, json.dumps(value, indent=1, sort_keys=sort_keys) + "\n")


def sha256(path: Path) -> str:
  """Returns the sha256 of a file's bytes, in hexadecimal."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def seal(path: Path) -> None:
  """Writes a file's sha256 beside it, in `<name>.sha256`, for `is_sealed`."""
  write_atomically(_seal_of(path), sha256(path))


def is_sealed(path: Path) -> bool:
  """Returns whether a file is there with the bytes that it had when it was sealed."""
  seal_of = pathlib.Path(_seal_of(path))
  return os.path.isfile(path) and seal_of.is_file() and seal_of.read_bytes() == sha256(path).encode()


def _seal_of(path: Path) -> str:
  return f"{os.fspath(path)}.sha256"


def digest_json(value: Any) -> str:
  """Returns the sha256 of a JSON value, the same on every machine."""
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def short_names(paths: Sequence[pathlib.Path]) -> list[str]:
  """Returns the shortest endings of the paths that differ from each other; equal paths get a number."""
  parts = [path.absolute().parts for path in paths]
  for length in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-length:]) for part in parts]
    if len(set(names)) == len(names):
      return names
  return [f"{part[-1]} ({number})" for number, part in enumerate(parts, 1)]
