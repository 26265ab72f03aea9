"""Makes tables about one directory, or about two in neighbouring columns."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from data.inspect.look import Look
from data.tables import Column, Report, text_column


def label(look: Look, looks: Sequence[Look]) -> str:
  """Returns the last part of a directory's path, or the whole path if two directories share it."""
  names = [pathlib.Path(each.name).absolute().name for each in looks]
  return look.name if len(set(names)) < len(looks) else pathlib.Path(look.name).absolute().name


def share(part: float, whole: float) -> str:
  """Returns part / whole in percent, '-' if the whole is 0."""
  return f"{part / whole:.2%}" if whole else "-"


def column(header: str, key: str) -> Column:
  """Returns a right-aligned column that shows the value `key` of each row, '-' if it is absent."""
  return Column(header, lambda row: str(row.get(key, "-")))


def facts_table(
  title: str,
  looks: Sequence[Look],
  facts: Callable[[Look], dict[str, Any]],
  notes: Sequence[str] = (),
  *,
  are_words: bool = False,
) -> Report:
  """Returns a table: a row per fact, a column per inspected directory, left-aligned if `are_words`."""
  found = [facts(look) for look in looks]
  names = dict.fromkeys(name for each in found for name in each)
  rows = [
    {"": name, **{str(at): each[name] for at, each in enumerate(found) if name in each}} for name in names
  ]
  columns = [column(label(look, looks), str(at)) for at, look in enumerate(looks)]
  if are_words:
    columns = [each._replace(side="left") for each in columns]
  return Report("", title, [text_column("", ""), *columns], rows, notes)


def groups_table(
  title: str, looks: Sequence[Look], kind: str, groups: Sequence[dict], notes: Sequence[str] = ()
) -> Report:
  """Returns a table: a row per group and directory; `groups` has {group: {header: text}} per directory."""
  names = dict.fromkeys(name for each in groups for name in each)
  rows = [
    {kind: name, "directory": label(look, looks), **each[name]}
    for name in sorted(names, key=lambda name: name.startswith("("))  # '(no letters)' is last
    for look, each in zip(looks, groups)
    if name in each
  ]
  headers = dict.fromkeys(header for each in groups for row in each.values() for header in row)
  of_row = [text_column(kind, kind), text_column("directory", "directory")][: len(looks)]
  return Report("", title, [*of_row, *(column(header, header) for header in headers)], rows, notes)
