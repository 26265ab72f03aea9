"""Whether the files of a checkpoint are those that were saved, for that step and by that run.

A list of digests is written into a step just before it is committed, so that a step without one is of a
version that wrote none. Storage that flips bits or loses pages, copies that stop half-way, and items or steps
that change places are noticed before anything is read from them.
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
  """Writes the digests of the files of all items in the directory of a step, just before it is committed."""
  digests = {
    path.relative_to(directory).as_posix(): files.sha256(path)
    for path in sorted(directory.glob("*/**/*"))  # beside the items lies what the commit itself writes
    if path.is_file()
  }
  content = {"step": step, "run_id": run_id, "files": digests}
  content["list"] = files.digest_json(content)
  files.write_atomically(directory / NAME, json.dumps(content, indent=1))


def _read(path: Path) -> dict[str, Any] | None:
  """The list of the step at `path`; None: it is damaged, or there is none."""
  content = files.read_json(path / NAME)
  itself = content.pop("list", None)  # older lists have none
  is_sound = {"step", "run_id", "files"} <= content.keys() and isinstance(content["files"], dict)
  return content if is_sound and itself in (None, files.digest_json(content)) else None


def run_id(path: Path) -> str:
  """The id of the run that saved the step at `path`; '' where the step does not say."""
  return str((_read(path) or {}).get("run_id", ""))


def is_complete(path: Path) -> bool:
  """Whether all files that the list of the step at `path` names are there; what they hold is not read."""
  content = _read(path)
  return content is not None and all((path / name).is_file() for name in content["files"])


def problem(path: Path, items: Sequence[str] = ()) -> str | None:
  """What is wrong with the files of the step at `path`, in words; None: nothing, or nothing is known of them.

  Only files under `items` are read where they are given.
  """
  if not (path / NAME).is_file():
    return _problem_without_list(path)
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


def _problem_without_list(path: Path) -> str | None:
  """What the meta of a step at `path` that has no list says against it."""
  meta = files.read_json(path / "meta" / "metadata")  # where it is damaged, who reads it finds out
  if str(meta.get("step", path.name)) != path.name:
    return f"it was saved as step {meta['step']}"
  return f"{NAME} is gone" if meta.get("run_id") else None  # versions that wrote no list knew no run


def refuse_damaged(path: Path, items: Sequence[str] = ()) -> None:
  """Raises a DataError where the files of a step are not those that were saved."""
  if wrong := problem(path, items):
    raise DataError(f"checkpoint {path} is damaged: {wrong}; move its directory away to use an older one")


def set_aside(path: Path, what: str, ending: str) -> None:
  """Renames the directory of a step that no run can use, never removes it, and warns of it."""
  names = (path.with_name(f"{path.name}.{ending}_{number}") for number in itertools.count(1))
  aside = path.rename(next(name for name in names if not name.exists()))
  logger.warning(f"{path} {what} and was renamed to {aside.name}; remove it if nobody needs it")
