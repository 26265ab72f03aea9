"""Reads and writes the cells of CSV and TSV files.

In CSV a cell in double quotes may have commas, line breaks and doubled quotes. In TSV a line is a row and
quotes are ordinary characters, as in the official files of GLUE.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def read(kind: str, lines: Iterable[str], *, most: int) -> Iterator[list[str]]:
  """Yields the cells of each row of a file of `kind` 'csv' or 'tsv'; blank lines are skipped.

  csv.Error: a quote of CSV is wrong, or a cell has more than `most` characters.
  """
  if kind == "tsv":
    return (line.rstrip("\r\n").split("\t") for line in lines if line.strip("\r\n"))
  csv.field_size_limit(most)
  return filter(None, csv.reader(lines, strict=True))


def other_separator(path: str, kind: str, names: Sequence[str]) -> str:
  """Returns advice if a one-cell header shows that the file has another separator; else ''."""
  sign = next((sign for sign in ";\t|," if len(names) == 1 and sign in names[0]), "")
  if not sign:
    return ""
  own = "tabs" if kind == "tsv" else "commas"
  ways = {",": f"cp {path} rows.csv", "\t": f"cp {path} rows.tsv"}
  way = ways.get(sign, f"tr '{sign}' '\\t' < {path} > rows.tsv")
  where = f"{sign!r} is between the cells of its first line ({names[0][:80]}), not {own}"
  return f"{where}; rename or convert it:\n  {way}"


def is_header_again(names: Sequence[str], row: Sequence[str]) -> bool:
  """Returns whether a row repeats the header, as in concatenated files; byte-order marks are ignored."""
  return len(names) > 1 and [cell.removeprefix("\ufeff") for cell in row] == list(names)


class _Lines(list[str]):
  """A list of lines to which `csv.writer` can write, because it has a method `write`."""

  def write(self, line: str) -> None:
    """Appends a line of CSV, with a line feed instead of csv's carriage return and line feed."""
    self.append(line.removesuffix("\r\n") + "\n")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
  """Returns rows as CSV with lines that end in a line feed; cells with any line break are quoted."""
  lines = _Lines()
  # Before Python 3.11.9 and 3.12.3 a lone carriage return is quoted only if lineterminator contains one.
  csv.writer(lines, lineterminator="\r\n").writerows(rows)
  return "".join(lines)
