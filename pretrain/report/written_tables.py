"""Reports that other commands have written beside a run, as tables of text.

They are read from their Markdown, in which a cell is what people read: percent, with its error.
"""

import pathlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

MOST_BYTES = 200_000  # of a file; no report of ours comes near it
_OF_ANALYSES = "analyses"  # the list that `pretrain.analysis` writes
OF_PROBES, ASKED = "probe", 4  # what `pretrain.probe` writes; its columns that say what was asked
MOST_ROWS = 200  # of a table on a page
DEPTH = 3  # folders below the workdir


class WrittenTable(NamedTuple):
  """A report in a file."""

  path: pathlib.Path
  title: str
  tables: Sequence[Sequence[Sequence[str]]]  # rows of cells, the header first
  notes: Sequence[str]


def find(directory: pathlib.Path, without: Collection[str] = ()) -> list[WrittenTable]:
  """The reports in a folder and up to `DEPTH` below, by path; folders named in `without` are not entered.

  A report is a Markdown file with a title and a table, and a JSON file of the same name beside it.
  """
  folders = [directory, *_folders(directory, without, DEPTH)]
  paths = [path for folder in folders for path in sorted(folder.glob("*.md"))]
  reports = [read(path) for path in paths if path.with_suffix(".json").is_file()]
  return [report for report in reports if report is not None]


def pictures(reports: Sequence[WrittenTable]) -> list[pathlib.Path]:
  """The plots in the folders in which analyses were reported, by path."""
  folders = sorted({report.path.parent for report in reports if report.path.stem == _OF_ANALYSES})
  found = [path for folder in folders for path in sorted(folder.glob("*.svg"))]
  return [path for path in found if path.stat().st_size <= MOST_BYTES]


def merged(reports: Sequence[tuple[str, WrittenTable]]) -> list[list[str]] | None:
  """The probes of several runs as one table, the header first: what was asked, then a column for each model.

  `reports` are of the runs with these names; of a run with several the last counts that is not of a single
  step. A column that all runs have alike, such as answers without a model, stands once. None where fewer
  than two runs have probes.
  """
  tables = {
    name: report.tables[0]
    for name, report in sorted(reports, key=lambda pair: not _is_of_a_step(pair[1]))
    if report.path.stem == OF_PROBES
    and all(len(row) == len(report.tables[0][0]) > ASKED for row in report.tables[0])
  }
  if len(tables) < 2:
    return None
  asked = [*dict.fromkeys(tuple(row[:ASKED]) for rows in tables.values() for row in rows[1:])]
  columns: dict[str, dict[str, tuple[str, ...]]] = {}
  for name, (header, *rows) in tables.items():
    by_question = {tuple(row[:ASKED]): row for row in rows}
    for at, model in enumerate(header[ASKED:], ASKED):
      _, step, number = model.rpartition(" step ")  # what is before it is the run's directory
      column = tuple(by_question[key][at] if key in by_question else "-" for key in asked)
      columns.setdefault(f"step {number}" if step else model, {})[name] = column
  shown: dict[str, tuple[str, ...]] = {}
  for model, of_run in columns.items():
    is_same = len(of_run) == len(tables) and len(set(of_run.values())) == 1
    names = {model: next(iter(of_run))} if is_same else {f"{name}: {model}": name for name in of_run}
    shown |= {label: of_run[name] for label, name in names.items()}
  cells = [[*key, *(column[at] for column in shown.values())] for at, key in enumerate(asked)]
  return [[*next(iter(tables.values()))[0][:ASKED], *shown], *cells]


def _is_of_a_step(report: WrittenTable) -> bool:
  return report.path.parent.name.startswith(f"{OF_PROBES}_")


def _folders(directory: pathlib.Path, without: Collection[str], depth: int) -> list[pathlib.Path]:
  below = []
  for path in sorted(directory.iterdir()) if depth else []:
    if path.is_dir() and path.name not in without and not path.name.startswith("."):
      below += [path, *_folders(path, without, depth - 1)]
  return below


def read(path: pathlib.Path) -> WrittenTable | None:
  """The report of `data.tables` in a Markdown file; None if it is another file."""
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
  # The second row of each is the rule below the header.
  kept = [[rows[0], *rows[2 : MOST_ROWS + 2]] for rows in tables if len(rows) > 2]
  return WrittenTable(path, lines[0][2:], kept, notes) if kept else None
