"""Reads files as rows, or as documents of text; chooses a reader by the ending, checks rows and columns."""

import collections
import itertools
import json
import operator
import sys
from collections.abc import Iterator
from typing import BinaryIO

from data import errors, tabular, text_files
from data.errors import DataError
from data.rows import conll
from data.rows.values import Row, check_cells, class_names, named, of_arrow, read_json

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
    if kind in tabular.ENDINGS.values():
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
    if kind in tabular.ENDINGS.values():
      with tabular.opened(path, kind) as file:
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
  if kind not in tabular.ENDINGS.values():
    return []
  with tabular.opened(path, kind) as file:
    return class_names(tabular.features(file.schema).get(column))


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


def documents(
  path: str, *, start: int, stop: int, text_field: str, counts: collections.Counter
) -> Iterator[list[str]]:
  """Yields the documents of a file or of a part of it, each a list of paragraphs.

  In a text file a line is a paragraph and a blank line ends the document; in other files a row is a document
  and the lines of one of its texts are the paragraphs. Bytes that are not UTF-8 become U+FFFD.

  Args:
    path: its ending decides how the file is read.
    start: first byte (first row group of a Parquet file).
    stop: byte (row group) after the last; -1: to the end.
    text_field: name of the text in a JSON line, or of a column.
    counts: counts what was cut, skipped or repaired.

  DataError: the file cannot be read, is damaged, or a row has no text under `text_field`.
  """
  kind = text_files.kind_of(path)
  with errors.reading(path, advice="repair or leave out this file"):
    if kind in tabular.ENDINGS.values():
      groups = None if stop < 0 else range(start, stop)
      for text in tabular.texts(path, kind, groups, text_field):
        yield from text_files.paragraphs(text, counts)
      return
    with text_files.open_file(path) as file:
      if start == 0:
        text_files.check_start(path, file)
      else:
        file.seek(start)
      if kind == "text":
        yield from text_files.text_documents(file, stop, counts)
        return
      if kind == "jsonl":
        texts = (_text_of(row, text_field, start) for row in _jsonl(path, file, start, stop, counts))
      else:
        table = _table(kind, path, file, counts)
        names = next(table)
        if text_field not in names:
          there = f"its columns are {errors.listed(names)}; set --text_field" if names else "it is empty"
          raise DataError(f"{path}: no column {text_field!r}; {there}")
        texts = map(operator.itemgetter(names.index(text_field)), table)
      for text in texts:
        yield from text_files.paragraphs(text, counts)


def _text_of(row: Row, text_field: str, start: int) -> str:
  """Returns a text of a JSON row, '' for null as in Parquet; DataError if there is none."""
  text = row.fields.get(text_field)
  if text is None and text_field in row.fields:
    return ""
  if not isinstance(text, str):
    there = f"only {errors.listed(sorted(row.fields)) or 'nothing'}"
    there = type(text).__name__ if text_field in row.fields else there
    where = text_files.place(row.source, row.number, row.unit, start)
    raise DataError(f"{where}: no text in the field {text_field!r}, found {there}; set --text_field")
  return text


def _decoded(path: str, number: int, unit: str, line: bytes, counts: collections.Counter | None) -> str:
  """Returns a line as text. DataError: not UTF-8, unless `counts` is given for what is repaired."""
  if counts is not None:
    return text_files.decoded(line, counts)
  try:
    return line.decode("utf-8")
  except UnicodeDecodeError as error:
    byte = f"byte 0x{line[error.start]:02x} at {error.start + 1:,}"
    raise DataError(f"{text_files.place(path, number, unit)}: not UTF-8 ({byte}); {_ENCODING}") from None


def _texts(path: str, file: BinaryIO) -> Iterator[Row]:
  for number, raw in text_files.bounded_lines(path, file, 0, -1):
    line = _decoded(path, number, "line", raw, None)
    if line.strip():
      yield check_cells(Row({TEXT: line.rstrip("\r\n")}, number, path, "line"))


def _jsonl(
  path: str, file: BinaryIO, start: int = 0, stop: int = -1, counts: collections.Counter | None = None
) -> Iterator[Row]:
  """Yields the rows of JSON from byte `start` on, numbered from there; `counts` as for `_decoded`."""
  unit = "line" if start or not text_files.is_array(file) else "item"
  for number, raw in text_files.json_records(path, file, start, stop):
    line, where = _decoded(path, number, unit, raw, counts), (path, number, unit, start)
    if not line.strip():
      continue
    try:
      fields, replaced = read_json(line) if counts is None else (json.loads(line), 0)
    except (ValueError, RecursionError) as error:
      at = f" ({error.msg} character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else ""
      raise DataError(
        f"{text_files.place(*where)}: not JSON: {line[:40].strip()}; expected one JSON object per line{at}"
      ) from None
    if not isinstance(fields, dict):
      found = type(fields).__name__
      raise DataError(f"{text_files.place(*where)}: a {found}; expected one JSON object per line")
    yield Row(fields, number, path, unit, replaced)


def _table(
  kind: str, path: str, file: BinaryIO, counts: collections.Counter | None = None
) -> Iterator[list[str]]:
  """Yields the header and then the cells of each row of a CSV or TSV file; `counts` as for `_decoded`."""
  lines = text_files.bounded_lines(path, file, 0, -1)
  texts = (_decoded(path, number, "line", line, counts) for number, line in lines)
  where = lambda number: text_files.place(path, number, "row")  # noqa: E731
  table = tabular.read_cells(path, kind, texts, most=text_files.MAX_RECORD_BYTES, where=where)
  yield _checked(path, next(table)) if counts is None else next(table)
  yield from table


def _of_table(kind: str, path: str, file: BinaryIO) -> Iterator[Row]:
  table = _table(kind, path, file)
  names = next(table)
  for number, row in enumerate(table, 1):
    yield Row(dict(zip(names, row)), number, path)


def _of_columns(kind: str, path: str) -> Iterator[Row]:
  with tabular.opened(path, kind) as file:
    names, number = _checked(path, file.schema.names), 0
    features = tabular.features(file.schema)
    for batch in file.batches():
      columns_of_batch = (
        [named(value, features[name]) for value in of_arrow(column)] if name in features else of_arrow(column)
        for name, column in zip(names, batch.columns)
      )
      for cells_of_row in zip(*columns_of_batch):
        number += 1
        yield Row(dict(zip(names, cells_of_row)), number, path)
