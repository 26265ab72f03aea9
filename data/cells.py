"""Reads and writes the cells of CSV and TSV files.

In CSV a cell in double quotes may have commas, line breaks and doubled quotes. In TSV a line is a row and
quotes are ordinary characters, as in the official files of GLUE.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from data import errors


def read(
  path: str, kind: str, lines: Iterable[str], *, most: int, where: Callable[[int], str]
) -> Iterator[list[str]]:
  """Yields the header and then the rows of a file of `kind` 'csv' or 'tsv'; blank lines are skipped.

  `where` returns the place of a row for messages, from its number behind the header, counted from 1.

  DataError: a quote of CSV is wrong, a cell has more than `most` characters, a row has another number of
  cells than the header or repeats it, or the file has another separator.
  """
  csv.field_size_limit(most)
  rows = (
    (line.rstrip("\r\n").split("\t") for line in lines if line.strip("\r\n"))
    if kind == "tsv"
    else filter(None, csv.reader(lines, strict=True))
  )
  names, number = [], 0
  try:
    names = next(rows, [])
    if problem := _other_separator(path, kind, names):
      raise errors.DataError(f"{path}: {problem}")
    yield names
    for number, row in enumerate(rows, 1):
      if len(row) != len(names):
        raise errors.DataError(
          f"{where(number)}: {errors.counted(len(row), 'cell')}, expected {len(names)} as in the first line "
          f"({errors.listed(names)}); correct or remove this row"
        )
      # As in concatenated files, which may have byte-order marks.
      if len(names) > 1 and [cell.removeprefix("\ufeff") for cell in row] == names:
        raise errors.DataError(f"{where(number)}: the names of the columns again; remove this row")
      yield row
  except csv.Error as error:
    place = f"{where(number + 1)}:" if names else f"{path}: its header is"
    raise errors.DataError(
      f"{place} damaged ({errors.reason(error)}); correct its quotes, or remove this row"
    ) from None


def _other_separator(path: str, kind: str, names: Sequence[str]) -> str:
  """Returns advice if a one-cell header shows that the file has another separator; else ''."""
  sign = next((sign for sign in ";\t|," if len(names) == 1 and sign in names[0]), "")
  if not sign:
    return ""
  own = "tabs" if kind == "tsv" else "commas"
  ways = {",": f"cp {path} rows.csv", "\t": f"cp {path} rows.tsv"}
  way = ways.get(sign, f"tr '{sign}' '\\t' < {path} > rows.tsv")
  where = f"{sign!r} is between the cells of its first line ({names[0][:80]}), not {own}"
  return f"{where}; rename or convert it:\n  {way}"


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
