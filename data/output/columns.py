"""What a file's rows are, found by reading all of them once before long work begins on them."""

import datetime
import decimal
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from data import arrow_files, rows, text_files
from data.rows import Row, values
from data.rows.read import STANDARD_INPUT, TEXT, no_row

logger = logging.getLogger(__name__)

_EXACT = 2**53  # the largest whole number up to which float64 holds all
_WIDE, _WIDER = "int64 and not float64", "not int64"
# Types of values -> the type of a Parquet column; None does not count. Other mixtures are written as JSON.
_ARROW: dict[frozenset[type | str], str] = {
  frozenset({str}): "string",
  frozenset({bool}): "bool",
  frozenset({int}): "int64",
  frozenset({float}): "float64",
  frozenset({int, float}): "float64",
  frozenset({_WIDE}): "int64",
  frozenset({int, _WIDE}): "int64",
}
JSON = "json"  # text that holds the value as JSON


class Survey(NamedTuple):
  """All rows of a file, looked at."""

  rows: int
  columns: dict[str, str]  # name -> a type of Arrow's or `JSON`, in the order of first appearance
  digest: str  # sha256 of all rows


def survey(path: str, check: Callable[[Row], object] = lambda row: None) -> Survey:
  """Reads every row of a file, so that no mistake is found hours later.

  Of a pipe nothing is read: 0 rows. DataError: of `rows.read` or `check`, or there is no row.
  """
  if path == STANDARD_INPUT:
    return Survey(0, {TEXT: "string"}, "")
  seen: dict[str, set[type | str]] = {}
  count, replaced, digest = 0, 0, hashlib.sha256()
  for row in rows.read(path):
    check(row)
    count, replaced = count + 1, replaced + row.replaced
    digest.update(json.dumps(row.fields, sort_keys=True, default=plain).encode())
    for name, value in row.fields.items():
      seen.setdefault(name, set()).add(_type(value))
  if not count:
    raise no_row(path)
  if replaced:
    logger.warning(values.replaced(path, replaced))
  kinds = {name: _ARROW.get(frozenset(types - {type(None)}), JSON) for name, types in seen.items()}
  return Survey(count, kinds, digest.hexdigest())


def _type(value: Any) -> type | str:
  """The type of a value; of a whole number also how wide it is, where that matters."""
  if type(value) is not int or abs(value) <= _EXACT:
    return type(value)
  return _WIDE if -(2**63) <= value < 2**63 else _WIDER


def arrow_schema(path: str, columns: Mapping[str, str], more: Mapping[str, Any]):
  """The schema of a Parquet file with the columns of the input `path` and then `more` {name: Arrow type}.

  A Parquet or Arrow input keeps its types; of others `columns` is that of a survey.
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
  """A value as JSON can hold it: dates in ISO 8601, exact decimals and bytes as text."""
  if isinstance(value, datetime.date | datetime.time | datetime.datetime):
    return value.isoformat()
  if isinstance(value, values.Exact):
    return value.text
  if isinstance(value, bytes):
    return value.decode("utf-8", "backslashreplace")
  if isinstance(value, decimal.Decimal | datetime.timedelta):
    return str(value)
  if hasattr(value, "tolist"):  # of numpy
    return value.tolist()
  raise TypeError(f"{type(value).__name__} has no form in JSON")
