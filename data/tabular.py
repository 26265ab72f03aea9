"""Reads the columns of Parquet and Arrow files, and the cells of CSV and TSV files; writes CSV.

Both formats of Arrow are supported: files, and streams such as `datasets.save_to_disk` writes. In CSV a cell
in double quotes may have commas, line breaks and doubled quotes. In TSV a line is a row and quotes are
ordinary characters, as in the official files of GLUE.
"""

import contextlib
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from data import errors

ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_ROWS = 256  # in a batch
_FILE = b"ARROW1"  # the first bytes of an Arrow file; a stream has none


class Opened(NamedTuple):
  """An open Parquet or Arrow file: its schema and a function that yields its batches."""

  schema: Any  # pyarrow.Schema
  batches: Callable[..., Iterator[Any]]  # (columns, row groups of Parquet; None: all) -> pyarrow.RecordBatch


@contextlib.contextmanager
def opened(path: str, kind: str) -> Iterator[Opened]:
  """Opens a Parquet or Arrow file (`kind`) for a `with` block; DataError if opening or reading it fails."""
  import pyarrow  # here: slow to import

  try:
    with contextlib.ExitStack() as stack:
      yield (_parquet if kind == "parquet" else _arrow)(path, stack)
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise errors.DataError(
      f"{path}: cannot be read as {kind.capitalize()} ({errors.reason(error)}); repair or leave out this file"
    ) from error


def _parquet(path: str, stack: contextlib.ExitStack) -> Opened:
  from pyarrow import parquet

  file = stack.enter_context(parquet.ParquetFile(path))

  def batches(columns: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> Iterator[Any]:
    return file.iter_batches(batch_size=_ROWS, row_groups=groups, columns=columns)

  return Opened(file.schema_arrow, batches)


def _arrow(path: str, stack: contextlib.ExitStack) -> Opened:
  import pyarrow

  source = stack.enter_context(pyarrow.OSFile(path))
  is_file = source.read(len(_FILE)) == _FILE
  source.seek(0)
  reader = stack.enter_context((pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(source))

  def batches(columns: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> Iterator[Any]:
    del groups
    for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
      batch.validate(full=True)  # damaged offsets would end the process in C++, without an exception
      chosen = batch if columns is None else batch.select(columns)
      yield from (chosen.slice(first, _ROWS) for first in range(0, chosen.num_rows, _ROWS))

  return Opened(reader.schema, batches)


def features(schema: Any) -> dict[str, Any]:
  """Returns {column: its feature} as the library `datasets` stores them in a schema; {} without them."""
  try:
    found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
  except (KeyError, TypeError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}


def row_groups(path: str, unit_bytes: int) -> list[tuple[int, int]]:
  """Cuts a Parquet file's row groups into (start, stop) ranges of about `unit_bytes`; DataError if broken."""
  from pyarrow import parquet

  with opened(path, "parquet"), parquet.ParquetFile(path) as file:
    sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
  borders, filled = [0], 0
  for number, size in enumerate(sizes, start=1):
    filled += size
    if filled >= unit_bytes or number == len(sizes):
      borders.append(number)
      filled = 0
  return list(itertools.pairwise(borders)) or [(0, 0)]  # a unit without rows: the manifest names the file


def texts(path: str, kind: str, groups: Sequence[int] | None, text_field: str) -> Iterator[str]:
  """Yields the texts of a column; null is '', bytes are decoded as UTF-8, invalid ones become U+FFFD.

  DataError: the column is missing or does not hold text.
  """
  import pyarrow

  with opened(path, kind) as file:
    if text_field not in file.schema.names:
      names = errors.listed(file.schema.names)
      raise errors.DataError(f"{path}: no column {text_field!r}; its columns are {names}; set --text_field")
    of_column = file.schema.field(text_field).type
    held = of_column.value_type if pyarrow.types.is_dictionary(of_column) else of_column
    if not any(name in str(held) for name in ("string", "binary", "null")) or pyarrow.types.is_nested(held):
      raise errors.DataError(
        f"{path}: the column {text_field!r} is {of_column}, expected string; set --text_field"
      )
    for batch in file.batches([text_field], groups):
      for text in batch.column(0).to_pylist():
        yield text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""


def read_cells(
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
