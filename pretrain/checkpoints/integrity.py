"""Checks that a checkpoint's files are those that were saved, for that step and by that run.

A list of digests is written into a step just before it is committed; only old versions wrote none. The check
finds flipped bits, lost pages, interrupted copies, and exchanged items or steps, before anything is read.
"""

import itertools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data import errors, files
from data.errors import DataError

logger = logging.getLogger(__name__)

NAME = "sha256.json"


def seal(directory: Path, *, step: int, run_id: str) -> None:
  """Writes the digests of all files of a step's items, just before the step is committed."""
  digests = {
    path.relative_to(directory).as_posix(): files.sha256(path)
    for path in sorted(directory.glob("*/**/*"))  # files of the commit are not in items
    if path.is_file()
  }
  content = {"step": step, "run_id": run_id, "files": digests}
  content["list"] = files.digest_json(content)
  files.write_atomically(directory / NAME, json.dumps(content, indent=1))


def _read(path: Path) -> dict[str, Any] | None:
  """Reads the list of file digests of the checkpoint at `path`; None if it is damaged or missing."""
  content = files.read_json(path / NAME)
  itself = content.pop("list", None)
  is_sound = {"step", "run_id", "files"} <= content.keys() and isinstance(content["files"], dict)
  return content if is_sound and itself == files.digest_json(content) else None


def run_id(path: Path) -> str:
  """Returns the id of the run that saved the step at `path`; '' if unknown."""
  return str((_read(path) or {}).get("run_id", ""))


def is_complete(path: Path) -> bool:
  """Returns whether every file in the digest list of the checkpoint at `path` exists, without reading it."""
  content = _read(path)
  return content is not None and all((path / name).is_file() for name in content["files"])


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
      is_same = files.sha256(path / name) == digest
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
