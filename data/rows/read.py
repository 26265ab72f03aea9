"""Reads files as rows: chooses a reader by the ending, and checks rows and columns."""

import itertools
import sys
from collections.abc import Iterator
from typing import BinaryIO

from data import arrow_files, cells, errors, text_files
from data.errors import DataError
from data.rows import conll
from data.rows.row import Row, check_cells, place
from data.rows.values import class_names, named, of_arrow, read_json

STANDARD_INPUT = "-"
TEXT = "text"  # the column of files without columns
_ADVICE = "repair this file"
_ENCODING = "convert the whole file, for example with `iconv -f LATIN1 -t UTF-8`"


def read(path: str) -> Iterator[Row]:
  """Yields the rows of a file in order; `-` is standard input, one text per line.

  In CSV a cell in double quotes may have commas, line breaks and doubled quotes. In TSV a line is a row and
  quotes are ordinary characters, as in the official files of GLUE. Blank lines are skipped. JSON files have
  one object per line, or an array of objects, which are numbered as items.

  Raises:
    DataError, with file and row: the file cannot be read, is damaged or not UTF-8; a row has another number
      of cells than the header; a column is repeated; a cell is longer than `row.MAX_CELL_CHARACTERS`.
  """
  if path == STANDARD_INPUT:
    yield from _texts("standard input", sys.stdin.buffer)
    return
  kind = conll.kind_of(path) or text_files.kind_of(path)
  if kind == "conll":
    yield from conll.read_conll(path)
    return
  with errors.reading(path, advice=_ADVICE):
    if kind in arrow_files.ENDINGS.values():
      yield from map(check_cells, _of_columns(kind, path))
      return
    with text_files.open_file(path) as file:
      text_files.check_start(path, file)
      if kind in ("csv", "tsv"):
        yield from map(check_cells, _of_table(kind, path, file))
      else:
        yield from map(check_cells, (_jsonl if kind == "jsonl" else _texts)(path, file))


def columns(path: str) -> list[str]:
  """Returns the names of a file's columns, from its header or all its rows; standard input is not read.

  Raises:
    DataError: as for `read`, or the file has neither a header nor a row.
  """
  if path == STANDARD_INPUT:
    return [TEXT]
  kind = text_files.kind_of(path)
  with errors.reading(path, advice=_ADVICE):
    if kind in arrow_files.ENDINGS.values():
      with arrow_files.opened(path, kind) as file:
        return _checked(path, file.schema.names)
    if kind in ("csv", "tsv"):
      with text_files.open_file(path) as file:
        text_files.check_start(path, file)
        return next(_table(kind, path, file))
  found = read(path)
  first = next(found, None)
  if first is None:
    raise no_row(path)
  # Rows of JSON lines may lack columns, and one may begin late: all are read.
  others = found if kind == "jsonl" else ()
  return list(dict.fromkeys(itertools.chain(first.fields, *(row.fields for row in others))))


def classes(path: str, column: str) -> list[str]:
  """Returns the names of the classes of a column, by number, if a Parquet or Arrow file has them."""
  kind = text_files.kind_of(path)
  if kind not in arrow_files.ENDINGS.values():
    return []
  with arrow_files.opened(path, kind) as file:
    return class_names(arrow_files.features(file.schema).get(column))


def no_row(path: str) -> DataError:
  """Returns the error for a file without rows."""
  return DataError(f"{path}: no row in this file; name a file with rows")


def _checked(path: str, names: list[str]) -> list[str]:
  """Returns the names of columns; DataError if there are none or one is repeated."""
  if not any(names):
    raise DataError(f"{path}: no header; its first line must name the columns")
  twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
  if twice is not None:
    raise DataError(f"{path}: the column {twice!r} occurs twice; rename one of them in the first line")
  return names


def _decoded(path: str, file: BinaryIO, unit: str = "line") -> Iterator[str]:
  """Yields lines as text, or the items of an array of JSON; DataError names one that is not UTF-8."""
  read = text_files.bounded_lines if unit == "line" else text_files.json_records
  for number, line in read(path, file, 0, -1):
    try:
      yield line.decode("utf-8")
    except UnicodeDecodeError as error:
      byte = f"byte 0x{line[error.start]:02x} at {error.start + 1:,}"
      where = place(path, number, unit)
      raise DataError(f"{where}: not UTF-8 ({byte}); {_ENCODING}") from None


def _texts(path: str, file: BinaryIO) -> Iterator[Row]:
  for number, line in enumerate(_decoded(path, file), 1):
    if line.strip():
      yield check_cells(Row({TEXT: line.rstrip("\r\n")}, number, path, "line"))


def _jsonl(path: str, file: BinaryIO) -> Iterator[Row]:
  unit = "item" if text_files.is_array(file) else "line"
  for number, line in enumerate(_decoded(path, file, unit), 1):
    if not line.strip():
      continue
    where = place(path, number, unit)
    try:
      fields, replaced = read_json(line)
    except (ValueError, RecursionError):
      raise DataError(f"{where}: not JSON: {line[:40].strip()}; expected one JSON object per line") from None
    if not isinstance(fields, dict):
      raise DataError(f"{where}: a {type(fields).__name__}; expected one JSON object per line")
    yield Row(fields, number, path, unit, replaced)


def _table(kind: str, path: str, file: BinaryIO) -> Iterator[list[str]]:
  """Yields the checked header and then the cells of each row of a CSV or TSV file."""
  where = lambda number: place(path, number, "row")  # noqa: E731
  table = cells.read(path, kind, _decoded(path, file), most=text_files.MAX_RECORD_BYTES, where=where)
  yield _checked(path, next(table))
  yield from table


def _of_table(kind: str, path: str, file: BinaryIO) -> Iterator[Row]:
  table = _table(kind, path, file)
  names = next(table)
  for number, row in enumerate(table, 1):
    yield Row(dict(zip(names, row)), number, path)


def _of_columns(kind: str, path: str) -> Iterator[Row]:
  with arrow_files.opened(path, kind) as file:
    names, number = _checked(path, file.schema.names), 0
    features = arrow_files.features(file.schema)
    for batch in file.batches():
      columns_of_batch = (
        [named(value, features[name]) for value in of_arrow(column)] if name in features else of_arrow(column)
        for name, column in zip(names, batch.columns)
      )
      for cells_of_row in zip(*columns_of_batch):
        number += 1
        yield Row(dict(zip(names, cells_of_row)), number, path)
