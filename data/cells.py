"""Cells of CSV and TSV files, read and written by one rule each.

In CSV a cell in double quotes may hold commas, line breaks and doubled quotes. In TSV quotes mean nothing, as
in the official files of GLUE, and a line is a row.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def read(kind: str, lines: Iterable[str], *, most: int) -> Iterator[list[str]]:
  """Yields the cells of each row of a file of `kind` 'csv' or 'tsv'; blank lines are no rows.

  csv.Error: quotes of CSV are damaged, or a cell has more than `most` characters.
  """
  if kind == "tsv":
    return (line.rstrip("\r\n").split("\t") for line in lines if line.strip("\r\n"))
  csv.field_size_limit(most)
  return filter(None, csv.reader(lines, strict=True))


def other_separator(path: str, kind: str, names: Sequence[str]) -> str:
  """Returns advice for a header of one cell whose names another separator divides; '' without one."""
  sign = next((sign for sign in ";\t|," if len(names) == 1 and sign in names[0]), "")
  if not sign:
    return ""
  own = "tabs" if kind == "tsv" else "commas"
  ways = {",": f"cp {path} rows.csv", "\t": f"cp {path} rows.tsv"}
  way = ways.get(sign, f"tr '{sign}' '\\t' < {path} > rows.tsv")
  where = f"{sign!r} is between the cells of its first line ({names[0][:80]}), not {own}"
  return f"{where}; give it another name, or other signs: {way}"


def is_header_again(names: Sequence[str], row: Sequence[str]) -> bool:
  """Whether a row is the header once more, as where files were joined; it may have a byte-order mark."""
  return len(names) > 1 and [cell.removeprefix("\ufeff") for cell in row] == list(names)


class _Lines(list[str]):
  """A list of lines that `csv.writer` can write to."""

  def write(self, line: str) -> None:
    """Appends a row, with a line feed alone at its end."""
    self.append(line.removesuffix("\r\n") + "\n")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
  """Returns rows as CSV whose lines end in a line feed; a cell with a line break of any kind is quoted."""
  lines = _Lines()
  # Before Python 3.11.9 and 3.12.3 a lone carriage return is quoted only if the writer's line ends have one.
  csv.writer(lines, lineterminator="\r\n").writerows(rows)
  return "".join(lines)
