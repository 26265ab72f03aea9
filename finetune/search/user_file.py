"""Reads a user's file, or a data set, for fine-tuning; splits rows by a hash of their text. No jax."""

import hashlib
import pathlib
from typing import Any

from data import files, rows
from data.rows import Row, datasets


def read(path: str, split: str, config: Any, download: bool) -> tuple[list[Row], list[str], str]:
  """Returns rows, column names and sha256 of a file, or of a data set's split (`split` by default)."""
  if not datasets.kind_of(path):
    return list(rows.read(path)), rows.columns(path), files.sha256(pathlib.Path(path))
  options = {"directory": config.data.directory, "module": config.data.module, "download": download}
  examples = datasets.read(path, split, **options)
  return examples, list(examples[0].fields if examples else ()), datasets.digest(examples)


def text_of(row: Row, column: str) -> str:
  """Returns the text of a row; DataError: it has none."""
  value = row.value(column)
  if not isinstance(value, str):
    row.refuse(f"{column!r} is {'empty' if value is None else type(value).__name__}, expected a text")
  if not value.strip():
    row.refuse(f"{column!r} is empty; add a text, or remove this row")
  return value


def is_held_out(text: str, fraction: float) -> bool:
  """Returns whether a row is held out for development, by a hash of its text: equal texts stay together."""
  digest = hashlib.sha256(text.encode()).digest()
  return int.from_bytes(digest[:8], "big") < fraction * 2**64
