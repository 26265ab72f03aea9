"""Tables of results: on a console, in Markdown, and the files beside them."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.console
import rich.table
import rich.text

from data import files
from data.errors import StorageError


class Table(NamedTuple):
  """Cells as text.

  Attributes:
    headers: names of the columns.
    sides: 'left' or 'right' for each.
    rows: as many cells each.
  """

  headers: Sequence[str]
  sides: Sequence[str]
  rows: Sequence[Sequence[str]]


class Page(NamedTuple):
  """A title, tables and sentences under them."""

  title: str
  tables: Sequence[Table]
  notes: Sequence[str]


def percent(value: float | None) -> str:
  """A fraction as the papers print it: '88.5'; '-' for None."""
  # Decimal digits decide: 0.8715 is 87.1 in binary and 87.2 in every table.
  return "-" if value is None else f"{round(round(100 * value, 6) + 1e-9, 1):.1f}"


def print_page(console: rich.console.Console, page: Page) -> None:
  """Prints a page as wide as the console is; names of tasks and cells are never taken for markup."""
  console.print()
  console.print(rich.text.Text(page.title, style="bold"))
  for table in page.tables:
    shown = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
    for name, side in zip(table.headers, table.sides, strict=True):
      shown.add_column(rich.text.Text(name), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
      shown.add_row(*(rich.text.Text(cell) for cell in row))
    console.print()
    console.print(shown)
  for note in page.notes:
    console.print()
    console.print(rich.text.Text(note), style="dim")


def markdown(page: Page) -> str:
  """The page as GitHub's Markdown."""
  lines = [f"# {page.title}", ""]
  for table in page.tables:
    rules = ["---:" if side == "right" else "---" for side in table.sides]
    for row in (table.headers, rules, *table.rows):
      lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |")
    lines.append("")
  for note in page.notes:
    lines += [note.replace("*", "\\*"), ""]
  return "\n".join(lines)


def write(
  workdir: str | os.PathLike, stem: str, page: Page, rows: Sequence[Mapping[str, Any]], content: Any
) -> list[pathlib.Path]:
  """Writes `<stem>.md`, `.csv` and `.json`, each whole or not at all.

  Args:
    workdir: where to; made if needed.
    stem: name of the files.
    page: for Markdown.
    rows: for CSV; all have the keys of the first, which are the header.
    content: for JSON.

  Returns:
    The three paths.

  Raises:
    StorageError: a file cannot be written.
  """
  buffer = io.StringIO()
  writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  texts = {
    "md": markdown(page),
    "csv": buffer.getvalue(),
    "json": json.dumps(content, indent=1) + "\n",
  }
  paths = {ending: pathlib.Path(workdir) / f"{stem}.{ending}" for ending in texts}
  try:
    pathlib.Path(workdir).mkdir(parents=True, exist_ok=True)
    for ending, text in texts.items():
      files.write_atomically(paths[ending], text.encode())
  except OSError as error:
    raise StorageError(f"{workdir}: the report cannot be written ({error.strerror or error})") from error
  return list(paths.values())
