"""Reads columns of Parquet and Arrow files (`*.parquet`, `*.arrow`, `*.feather`) with one interface.

Both formats of Arrow are supported: files, and streams such as `datasets.save_to_disk` writes.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
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
