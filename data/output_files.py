"""Writes a table with a row for each row of an input as CSV, JSON lines, Parquet or .npy; whole or absent.

`survey` finds the columns and their types before long work begins.
"""

import contextlib
import datetime
import decimal
import json
import logging
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from data import errors, files, rows, tabular, text_files
from data.errors import ConfigError
from data.rows import Row, values
from data.rows.read import STANDARD_INPUT, TEXT, no_row
from data.rows.values import Exact

logger = logging.getLogger(__name__)

Rows = Sequence[dict[str, Any]]


class Writer(Protocol):
  """Interface of an output format: writes rows to an open binary file."""

  def write(self, rows: Rows) -> None:
    """Writes rows behind those that were written before."""
    ...

  def close(self) -> None:
    """Writes what belongs behind the last row; the file stays open."""
    ...


Form = Callable[[IO[bytes]], Writer]  # makes the writer of a new file


@contextlib.contextmanager
def opened(output: str | pathlib.Path, form: Form) -> Iterator[Callable[[Rows], None]]:
  """Yields a function that writes rows to a file, which appears whole at the end of the block or not at all.

  For '' and '-' rows are printed at once. Folders are created. ConfigError: the file exists, which is never
  replaced. StorageError: it cannot be written.
  """
  if output in ("", "-"):
    printer = form(sys.stdout.buffer)

    def show(rows: Rows) -> None:
      printer.write(rows)
      sys.stdout.flush()

    yield show
    return
  refuse_existing(output)
  with errors.writing(output):
    pathlib.Path(output).absolute().parent.mkdir(parents=True, exist_ok=True)
    with files.whole_file(output) as aside:
      # Closed after an error too: else pyarrow would try it later, on a closed file.
      with open(aside, "wb") as file, contextlib.closing(form(file)) as writer:
        yield writer.write
      refuse_existing(output)  # another command may have made it meanwhile


def refuse_existing(output: str | pathlib.Path) -> None:
  """Raises ConfigError if a file or link `output` exists: files are never replaced."""
  path = pathlib.Path(output)
  if path.is_symlink() or path.exists():
    raise ConfigError(f"--output={output} is there already; name another file, or remove this one")


class Csv:
  """The output format CSV with a header; None is an empty cell, other values than text become JSON."""

  def __init__(self, file: IO[bytes], names: Sequence[str]) -> None:
    """Writes the header, the columns `names`."""
    self._file, self._names = file, names
    file.write(tabular.csv_text([names]).encode())

  def write(self, rows: Rows) -> None:
    """Writes rows as lines of CSV."""
    lines = [[_cell(row.get(name)) for name in self._names] for row in rows]
    self._file.write(tabular.csv_text(lines).encode())

  def close(self) -> None:
    """Does nothing: CSV has no end."""


def _cell(value: Any) -> str:
  if value is None:
    return ""
  if isinstance(value, str):
    return value
  made = json.dumps(value, ensure_ascii=False, default=plain)
  return json.loads(made) if made.startswith('"') else made  # a date is text, without quotes


def json_line(row: Mapping[str, Any]) -> bytes:
  """Returns a row as a line of JSON; JSON has no NaN or infinity, so these are null."""
  line = json.dumps(row, ensure_ascii=False, default=plain)
  if "NaN" in line or "Infinity" in line:
    line = json.dumps(json.loads(line, parse_constant=lambda name: None), ensure_ascii=False)
  return line.encode() + b"\n"


class JsonLines:
  """The output format JSON lines: one object per line."""

  def __init__(self, file: IO[bytes]) -> None:
    """Writes nothing yet."""
    self._file = file

  def write(self, rows: Rows) -> None:
    """Writes a line for each row."""
    self._file.write(b"".join(map(json_line, rows)))

  def close(self) -> None:
    """Does nothing: JSON lines have no end."""


class Parquet:
  """The output format Parquet; rows that are written together become a row group."""

  def __init__(self, file: IO[bytes], schema) -> None:
    """Sets the pyarrow.Schema; in a text column, other values than text are written as JSON."""
    from pyarrow import parquet  # here: slow to import

    self._schema, self._writer = schema, parquet.ParquetWriter(file, schema)

  def write(self, rows: Rows) -> None:
    """Writes rows as a row group."""
    import pyarrow

    columns = [
      pyarrow.array([_value(row.get(field.name), field.type) for row in rows], field.type)
      for field in self._schema
    ]
    self._writer.write_table(pyarrow.table(columns, schema=self._schema))

  def close(self) -> None:
    """Writes the schema and the places of the row groups."""
    self._writer.close()


def _value(value: Any, kind: Any) -> Any:
  is_text = str(kind) in ("string", "large_string")
  return _cell(value) if is_text and value is not None else _in_arrow(value)


def _in_arrow(value: Any) -> Any:
  """Replaces `Exact` times and dates in a value by their integers, which Arrow converts to its types."""
  if isinstance(value, list):
    return [_in_arrow(item) for item in value]
  if isinstance(value, dict):
    return {name: _in_arrow(item) for name, item in value.items()}
  return value.value if isinstance(value, Exact) else value


class Npy:
  """The output format .npy: one array [rows, width], the vectors in the column `name`."""

  def __init__(self, file: IO[bytes], name: str, width: int, dtype: str = "float32") -> None:
    """Sets the column, the length of its vectors, and the numpy type of their numbers."""
    self._file, self._name, self._width, self._rows = file, name, width, 0
    self._dtype = np.dtype(dtype).newbyteorder("<")
    self._write_header()

  def _write_header(self) -> None:
    described = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._rows, self._width)}
    np.lib.format.write_array_header_1_0(self._file, described)

  def write(self, rows: Rows) -> None:
    """Writes the rows' vectors."""
    self._file.write(b"".join(np.asarray(row[self._name], self._dtype).tobytes() for row in rows))
    self._rows += len(rows)

  def close(self) -> None:
    """Writes the number of rows into the header, in which NumPy leaves room for it."""
    self._file.seek(0)
    self._write_header()


def choose(output: str, made: Mapping[str, Form]) -> Form:
  """Returns the constructor in `made` for the ending of `--output`, or for '' or '-'.

  ConfigError: the ending is not a key of `made`, {'.csv': ..., '-': ...}.
  """
  ending = output if output in ("", "-") else pathlib.PurePath(output).suffix.lower()
  if ending not in made:
    *others, last = made
    endings = f"{', '.join(others)} or {last}" if others else last
    raise ConfigError(f"--output={output}: expected a name that ends in {endings}")
  return made[ending]


_EXACT = 2**53  # float64 represents all integers up to this one
_WIDE, _WIDER = "int64 and not float64", "not int64"
# Types of values in a column, except None -> type of the Parquet column; other mixtures are written as JSON.
_ARROW: dict[frozenset[type | str], str] = {
  frozenset({str}): "string",
  frozenset({bool}): "bool",
  frozenset({int}): "int64",
  frozenset({float}): "float64",
  frozenset({int, float}): "float64",
  frozenset({_WIDE}): "int64",
  frozenset({int, _WIDE}): "int64",
}
JSON = "json"  # a text column with values as JSON


class Survey(NamedTuple):
  """The number of rows and the columns of a file."""

  rows: int
  columns: dict[str, str]  # name -> Arrow type or `JSON`, in order of first appearance


def survey(path: str, check: Callable[[Row], object] = lambda row: None) -> Survey:
  """Reads and checks every row of a file, so that errors are found before long work begins.

  Standard input is not read: the result has 0 rows. DataError: as for `rows.read` and `check`, or there is no
  row.
  """
  if path == STANDARD_INPUT:
    return Survey(0, {TEXT: "string"})
  seen: dict[str, set[type | str]] = {}
  count, replaced = 0, 0
  for row in rows.read(path):
    check(row)
    count, replaced = count + 1, replaced + row.replaced
    for name, value in row.fields.items():
      seen.setdefault(name, set()).add(_type(value))
  if not count:
    raise no_row(path)
  if replaced:
    logger.warning(values.replaced(path, replaced))
  kinds = {name: _ARROW.get(frozenset(types - {type(None)}), JSON) for name, types in seen.items()}
  return Survey(count, kinds)


def _type(value: Any) -> type | str:
  """Returns the type of a value, or a name for integers that are too large for float64 or int64."""
  if isinstance(value, values.ClassNumber):
    return int
  if type(value) is not int or abs(value) <= _EXACT:
    return type(value)
  return _WIDE if -(2**63) <= value < 2**63 else _WIDER


def arrow_schema(path: str, columns: Mapping[str, str], more: Mapping[str, Any]):
  """Returns the schema of a Parquet file: the columns of the input `path`, then `more` {name: type}.

  Columns of a Parquet or Arrow input keep their types; for other inputs `columns` is that of a `Survey`.
  """
  import pyarrow  # here: slow to import

  types: dict[str, Any] = {}
  kind_of_file = text_files.kind_of(path)
  if kind_of_file in tabular.ENDINGS.values():
    with tabular.opened(path, kind_of_file) as file:
      types = {field.name: field.type for field in file.schema}
  names = {"string": pyarrow.string(), "bool": pyarrow.bool_(), "int64": pyarrow.int64()}
  names |= {"float64": pyarrow.float64(), JSON: pyarrow.string()}
  fields = [(name, types.get(name, names[kind])) for name, kind in columns.items()]
  return pyarrow.schema([*fields, *more.items()])


def plain(value: Any) -> Any:
  """Returns a value as a JSON type: dates in ISO 8601, exact decimals and bytes as text."""
  if isinstance(value, datetime.date | datetime.time | datetime.datetime):
    return value.isoformat()
  if isinstance(value, values.Exact):
    return value.text
  if isinstance(value, bytes):
    return value.decode("utf-8", "backslashreplace")
  if isinstance(value, decimal.Decimal | datetime.timedelta | uuid.UUID):
    return str(value)
  if hasattr(value, "tolist"):  # of numpy
    return value.tolist()
  raise TypeError(f"{type(value).__name__} cannot be written as JSON")
