"""Reads reports that other commands have written in a workdir, as tables of text.

It reads their Markdown, whose cells are formatted for people: percent, with the error.
"""

import pathlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from data.tables import Cells

MOST_BYTES = 200_000  # of a file; no report of this program is nearly as large
_OF_ANALYSES = "analyses"  # name of the list written by `pretrain.analysis`
MOST_ROWS = 200  # of a table on a page
DEPTH = 3  # levels of folders below the workdir


class WrittenTable(NamedTuple):
  """The title, tables and notes of a Markdown report that another command wrote."""

  path: pathlib.Path
  title: str
  tables: Sequence[Cells]
  notes: Sequence[str]


def find(directory: pathlib.Path, without: Collection[str] = ()) -> list[WrittenTable]:
  """Returns the reports in a folder and `DEPTH` levels below, by path, except in folders named in `without`.

  A report is a Markdown file with a title and a table, and a JSON file of the same name beside it.
  """
  folders = [directory, *_folders(directory, without, DEPTH)]
  paths = [path for folder in folders for path in sorted(folder.glob("*.md"))]
  reports = [read(path) for path in paths if path.with_suffix(".json").is_file()]
  return [report for report in reports if report is not None]


def pictures(reports: Sequence[WrittenTable]) -> list[pathlib.Path]:
  """Returns the plots in folders with reports of analyses, by path."""
  folders = sorted({report.path.parent for report in reports if report.path.stem == _OF_ANALYSES})
  found = [path for folder in folders for path in sorted(folder.glob("*.svg"))]
  return [path for path in found if path.stat().st_size <= MOST_BYTES]


def _folders(directory: pathlib.Path, without: Collection[str], depth: int) -> list[pathlib.Path]:
  below = []
  for path in sorted(directory.iterdir()) if depth else []:
    if path.is_dir() and path.name not in without and not path.name.startswith("."):
      below += [path, *_folders(path, without, depth - 1)]
  return below


def read(path: pathlib.Path) -> WrittenTable | None:
  """Reads a Markdown report as `data.tables` writes it; None if the file has no title or no table."""
  try:
    if path.stat().st_size > MOST_BYTES:
      return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
  except OSError:
    return None
  if not lines or not lines[0].startswith("# "):
    return None
  tables: list[list[list[str]]] = []
  notes, is_inside = [], False
  for line in lines[1:]:
    is_row = line.startswith("| ") and line.endswith(" |")
    if is_row:
      if not is_inside:
        tables.append([])
      tables[-1].append(line[2:-2].split(" | "))
    elif line:
      notes.append(line.replace("\\*", "*"))
    is_inside = is_row
  kept = [
    Cells(rows[0], rows[2 : MOST_ROWS + 2], [at for at, rule in enumerate(rows[1]) if rule.endswith(":")])
    for rows in tables
    if len(rows) > 2
  ]
  return WrittenTable(path, lines[0][2:], kept, notes) if kept else None
