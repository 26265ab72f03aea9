"""Expands the globs of a source to files, on this machine or at an address of a bucket."""

import glob
import os
from collections.abc import Iterator

from data import command, fetched, files


def patterns(source: str) -> Iterator[tuple[str, list[str]]]:
  """Yields (glob, its matches) for the comma-separated globs of a source; file names may have commas.

  DataError: an address matches nothing.
  """
  parts = command.names(source)
  while parts:
    tried = ((end, _matches(",".join(parts[:end]))) for end in range(1, len(parts) + 1))
    end, matches = next(((end, matches) for end, matches in tried if matches), (1, []))
    yield ",".join(parts[:end]), matches
    parts = parts[end:]


def _matches(pattern: str) -> list[str]:
  if files.is_address(pattern):
    return [str(path) for path in fetched.matching(pattern, flag="--source")]
  head, tail = os.path.expanduser(pattern), ""
  # A path that exists is not a glob, even with brackets: '[2024] notes.txt', 'corpus [old]/*.txt'.
  while head and not os.path.lexists(head):
    head, sign, name = head.rpartition("/")
    tail = f"{sign}{name}{tail}"
  return [path for path in _glob(glob.escape(head) + tail) if os.path.isfile(path)]


def _glob(pattern: str) -> list[str]:
  """Returns the files that a glob matches; '**' follows links, but visits no linked folder twice."""
  start, sign, rest = (f"{pattern}/*" if pattern.endswith("**") else pattern).partition("**/")
  if not sign or (start and not start.endswith("/")):
    return glob.glob(pattern)
  matches, entered = [], set()
  for top in glob.glob(start) if start else ["."]:
    for folder, below, _ in os.walk(top, followlinks=True):
      real = os.path.realpath(folder)
      is_linked = real != os.path.normpath(f"{os.path.realpath(top)}/{os.path.relpath(folder, top)}")
      if is_linked and real in entered:
        below.clear()
        continue
      entered.add(real)
      below[:] = sorted(name for name in below if not name.startswith("."))
      matches += _glob(f"{glob.escape(folder.rstrip('/'))}/{rest}")
  return matches
