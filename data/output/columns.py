"""Surveys a file's rows and columns by reading it once, before long work on it begins."""

import datetime
import decimal
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from data import arrow_files, rows, text_files
from data.rows import Row, values
from data.rows.read import STANDARD_INPUT, TEXT, no_row

logger = logging.getLogger(__name__)

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
  if kind_of_file in arrow_files.ENDINGS.values():
    with arrow_files.opened(path, kind_of_file) as file:
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
