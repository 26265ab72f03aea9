"""Checks that a checkpoint's files are those that were saved, for that step and by that run.

A list of digests is written into a step just before it is committed; only old versions wrote none. The check
finds flipped bits, lost pages, interrupted copies, and exchanged items or steps, before anything is read.
"""

import hashlib
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data import errors, files
from data.errors import DataError

logger = logging.getLogger(__name__)

NAME = "sha256.json"


def seal(directory: Path, *, step: int, run_id: str) -> None:
  """Writes the digests of all files of a step's items, just before the step is committed."""
  digests = {
    path.relative_to(directory).as_posix(): _sha256(path)
    for path in files_of(directory)
    if path.parent != directory  # files of the commit are not in items
  }
  content = {"step": step, "run_id": run_id, "files": digests}
  content["list"] = files.digest_json(content)
  if files.is_address(directory):
    (directory / NAME).write_text(json.dumps(content, indent=1))  # an object appears whole
  else:
    files.write_atomically(directory / NAME, json.dumps(content, indent=1))


def files_of(directory: Path) -> Iterator[Path]:
  """Yields all files below a directory, here or at an address, in the order of their names."""
  for entry in sorted(directory.iterdir()):
    if entry.is_dir():
      yield from files_of(entry)
    else:
      yield entry


def _sha256(path: Path) -> str:
  with path.open("rb") as file:  # not `open`, which knows no address
    return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
  """Reads the list of file digests of the checkpoint at `path`; None if it is damaged or missing."""
  try:
    content = json.loads((path / NAME).read_text())
  except (OSError, ValueError):
    return None
  if not isinstance(content, dict):
    return None
  itself = content.pop("list", None)
  is_sound = {"step", "run_id", "files"} <= content.keys() and isinstance(content["files"], dict)
  return content if is_sound and itself == files.digest_json(content) else None


def run_id(path: Path) -> str:
  """Returns the id of the run that saved the step at `path`; '' if unknown."""
  return str((_read(path) or {}).get("run_id", ""))


def digests(path: Path) -> dict[str, str]:
  """Returns {name: sha256} of the files of the step at `path`; {} if its list is damaged or missing."""
  return (_read(path) or {}).get("files", {})


def problem(path: Path, items: Sequence[str] = ()) -> str | None:
  """Describes the first damaged file of the checkpoint at `path`; None if no damage is found.

  With `items`, such as 'params', only the files of these items are read.
  """
  if not (path / NAME).is_file():
    return f"{NAME} is gone"
  content = _read(path)
  if content is None:
    return f"{NAME} is damaged"
  if str(content["step"]) != path.name:
    return f"it was saved as step {content['step']}"
  for name, digest in content["files"].items():
    if items and name.split("/")[0] not in items:
      continue
    try:
      is_same = _sha256(path / name) == digest
    except OSError as error:
      return f"{name} cannot be read ({errors.reason(error)})"
    if not is_same:
      return f"{name} is not as it was saved (its sha256 differs)"
  return None


def refuse_damaged(path: Path, items: Sequence[str] = ()) -> None:
  """Raises DataError if the files of a step are not those that were saved."""
  if wrong := problem(path, items):
    raise DataError(f"checkpoint {path} is damaged: {wrong}; to use an older one, move its directory away")


def set_aside(path: Path, what: str, ending: str) -> None:
  """Renames the directory of an unusable step, never removes it, and logs a warning."""
  names = (path.with_name(f"{path.name}.{ending}_{number}") for number in itertools.count(1))
  aside = path.rename(next(name for name in names if not name.exists()))
  logger.warning(f"{path} {what} and was renamed to {aside.name}; remove it if it is not needed")
