"""Reports of results: tables with notes, printed on a console and written as Markdown, CSV and JSON."""

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import rich.console
import rich.table
import rich.text

from data import errors, files, tabular

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]


class Column(NamedTuple):
  """A column of a table for people; `show` returns the text of a row's cell."""

  header: str
  show: Callable[[Row], str]
  side: Literal["left", "right"] = "right"


class Cells(NamedTuple):
  """A table as text: its header, its rows of cells, and which columns are right-aligned."""

  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  numbers: Collection[int] = ()  # indices of right-aligned columns

  def as_markdown(self) -> str:
    """Returns the table as GitHub's Markdown, a line for each row."""
    rules = ["---:" if at in self.numbers else "---" for at in range(len(self.header))]
    lines = [self.header, rules, *self.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


class Table(NamedTuple):
  """Rows of results, and the columns in which a table shows them."""

  columns: Sequence[Column]
  rows: Sequence[Row]

  def cells(self) -> Cells:
    """Returns the table with every cell formatted as text."""
    return Cells(
      [column.header for column in self.columns],
      [[column.show(row) for column in self.columns] for row in self.rows],
      [at for at, column in enumerate(self.columns) if column.side == "right"],
    )


def percent(value: float | None) -> str:
  """Returns a fraction in percent with one decimal, '88.5'; '-' for None."""
  # Rounds decimal digits, not binary ones: 0.8715 becomes 87.2 as in the papers' tables, not 87.1.
  return "-" if value is None else f"{round(round(100 * value, 6) + 1e-9, 1):.1f}"


def text_column(header: str, key: str) -> Column:
  """Returns a column that shows the value `key` of each row unchanged."""
  return Column(header, lambda row: str(row[key]), "left")


def percent_column(header: str, key: str) -> Column:
  """Returns a column that shows the fraction `key` in percent: '-' for None, '' if it is absent."""
  return Column(header, lambda row: percent(row[key]) if key in row else "")


@dataclasses.dataclass(frozen=True)
class Report:
  """Results as tables: console and Markdown for people, CSV and JSON for programs."""

  stem: str  # name of the files without their endings
  title: str
  columns: Sequence[Column]
  rows: Sequence[Row]  # JSON values by name; scores are fractions. Rows may have different names
  notes: Sequence[str]  # remarks on the numbers, a sentence or two each
  details: Sequence[Table] = ()  # further tables, only for people
  totals: Sequence[Row] = ()  # last rows, such as an average; not in CSV

  @property
  def tables(self) -> list[Table]:
    """The report's tables for people: its rows with their totals, then the further tables."""
    return [Table(self.columns, [*self.rows, *self.totals]), *self.details]

  def print(self, console: rich.console.Console | None = None) -> None:
    """Prints the report on a console (None: standard output); names are never read as markup."""
    console = console or rich.console.Console(highlight=False)
    console.print()
    console.print(rich.text.Text(self.title, style="bold"))
    for columns, rows in self.tables:
      shown = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
      for column in columns:
        shown.add_column(rich.text.Text(column.header), justify=column.side, overflow="fold")
      for row in rows:
        shown.add_row(*(rich.text.Text(column.show(row)) for column in columns))
      console.print()
      console.print(shown)
    for note in self.notes:
      console.print()
      console.print(rich.text.Text(note), style="dim")

  def as_markdown(self) -> str:
    """Returns the report as GitHub's Markdown."""
    lines = [f"# {self.title}", ""]
    for table in self.tables:
      lines += [table.cells().as_markdown(), ""]
    for note in self.notes:
      lines += [note.replace("*", "\\*"), ""]
    return "\n".join(lines)

  def as_csv(self) -> str:
    """Returns the rows as CSV; a mapping is written 'key=value;key=value'."""
    names = list(dict.fromkeys(name for row in self.rows for name in row))
    return tabular.csv_text(
      [names, *([_csv_value(row.get(name, "")) for name in names] for row in self.rows)]
    )

  def as_json(self) -> str:
    """Returns title, rows, totals and notes as JSON."""
    rows = {"rows": list(self.rows), "totals": list(self.totals)}
    content = {"title": self.title, **rows, "notes": list(self.notes)}
    return json.dumps(content, indent=1) + "\n"

  def write(self, workdir: str | os.PathLike) -> list[pathlib.Path]:
    """Writes `<stem>.md`, `.csv` and `.json`, each completely or not at all; returns their paths.

    Raises:
      StorageError: a file cannot be written.
    """
    texts = {"md": self.as_markdown(), "csv": self.as_csv(), "json": self.as_json()}
    paths = {ending: pathlib.Path(workdir) / f"{self.stem}.{ending}" for ending in texts}
    with errors.writing(workdir):
      pathlib.Path(workdir).mkdir(parents=True, exist_ok=True)
      for ending, text in texts.items():
        files.write_atomically(paths[ending], text)
    return list(paths.values())

  def publish(self, workdir: str | os.PathLike) -> None:
    """Prints and writes the report, and logs the names of the files; errors as for `write`."""
    self.print()
    markdown, *others = self.write(workdir)
    logger.info(f"The same as files: {markdown}, {' and '.join(path.name for path in others)}")


def _csv_value(value: Any) -> Any:
  if isinstance(value, Mapping):
    return ";".join(f"{name}={item}" for name, item in value.items())
  return int(value) if isinstance(value, bool) else value
