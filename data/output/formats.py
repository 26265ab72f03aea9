"""Formats of output files: CSV, JSONL, Parquet, and vectors as .npy."""

import io
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from data import cells
from data.errors import ConfigError
from data.output.columns import plain
from data.rows.values import Exact

Rows = Sequence[dict[str, Any]]


class Format(Protocol):
  """Interface of an output format: encodes rows as parts, and joins the parts to one file."""

  def encode(self, rows: Rows) -> bytes:
    """Returns rows encoded as one part of the output."""
    ...

  def join(self, parts: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """Joins encoded parts to the output file `target`, in bounded memory."""
    ...


def _append(parts: Iterable[pathlib.Path], target: pathlib.Path, head: bytes) -> None:
  with open(target, "wb") as whole:
    whole.write(head)
    for part in parts:
      with open(part, "rb") as file:
        shutil.copyfileobj(file, whole, 1 << 20)


class Csv:
  """The output format CSV with a header; None is an empty cell, other values than text become JSON."""

  def __init__(self, names: Sequence[str]) -> None:
    self.names = names

  def _lines(self, rows: Iterable[Sequence[str]]) -> bytes:
    return cells.csv_text(rows).encode()

  def encode(self, rows: Rows) -> bytes:
    """Returns rows as lines of CSV, without a header."""
    return self._lines([[_cell(row.get(name)) for name in self.names] for row in rows])

  def join(self, parts: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """Writes the CSV header, then the encoded parts, to `target`."""
    _append(parts, target, self._lines([self.names]))


def _cell(value: Any) -> str:
  if value is None:
    return ""
  if isinstance(value, str):
    return value
  made = json.dumps(value, ensure_ascii=False, default=plain)
  return json.loads(made) if made.startswith('"') else made  # a date is text, without quotes


def _line(row: Mapping[str, Any]) -> bytes:
  """Returns a row as a line of JSON; JSON has no NaN or infinity, so these are null."""
  line = json.dumps(row, ensure_ascii=False, default=plain)
  if "NaN" in line or "Infinity" in line:
    line = json.dumps(json.loads(line, parse_constant=lambda name: None), ensure_ascii=False)
  return line.encode() + b"\n"


class JsonLines:
  """The output format JSON lines: one object per line."""

  def encode(self, rows: Rows) -> bytes:
    """Returns rows as JSON lines, one object for each row."""
    return b"".join(_line(row) for row in rows)

  def join(self, parts: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """Concatenates encoded parts into the file `target`."""
    _append(parts, target, b"")


class Parquet:
  """The output format Parquet; each part becomes a row group."""

  def __init__(self, schema) -> None:
    """Sets the pyarrow.Schema; in a text column, other values than text are written as JSON."""
    self.schema = schema

  def encode(self, rows: Rows) -> bytes:
    """Returns rows as the bytes of a Parquet file, which is one part of the output."""
    import pyarrow  # here: slow to import
    from pyarrow import parquet

    columns = [
      pyarrow.array([_value(row.get(field.name), field.type) for row in rows], field.type)
      for field in self.schema
    ]
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, schema=self.schema), content)
    return content.getvalue()

  def join(self, parts: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """Joins the Parquet files of all parts to one, with a row group for each."""
    from pyarrow import parquet

    with parquet.ParquetWriter(target, self.schema) as whole:
      for part in parts:
        whole.write_table(parquet.read_table(part))


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

  def __init__(self, name: str, width: int, dtype: str = "<f4") -> None:
    """Sets the column, the length of its vectors, and their little-endian numpy type."""
    self.name, self.width, self.dtype = name, width, dtype

  def encode(self, rows: Rows) -> bytes:
    """Returns the rows' vectors as bytes."""
    return b"".join(np.asarray(row[self.name], self.dtype).tobytes() for row in rows)

  def join(self, parts: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """Writes the header of a .npy file, then the vectors of all parts, to `target`."""
    parts = list(parts)
    count = sum(part.stat().st_size for part in parts) // (np.dtype(self.dtype).itemsize * self.width)
    header = io.BytesIO()
    described = {"descr": self.dtype, "fortran_order": False, "shape": (count, self.width)}
    np.lib.format.write_array_header_1_0(header, described)
    _append(parts, target, header.getvalue())


class Nothing:
  """An output format that writes nothing; it discards all rows."""

  def encode(self, rows: Rows) -> bytes:
    """Discards the rows; returns no bytes."""
    return b""

  def join(self, parts: Iterable[pathlib.Path], target: pathlib.Path) -> None:
    """Writes no file."""


def choose(output: str, made: Mapping[str, Callable[[], Format]]) -> Callable[[], Format]:
  """Returns the constructor in `made` for the ending of `--output`, or for '' or '-'.

  ConfigError: the ending is not a key of `made`, {'.csv': ..., '-': ...}.
  """
  ending = output if output in ("", "-") else pathlib.PurePath(output).suffix.lower()
  if ending not in made:
    *others, last = made
    endings = f"{', '.join(others)} or {last}" if others else last
    raise ConfigError(f"--output={output}: expected a name that ends in {endings}")
  return made[ending]
