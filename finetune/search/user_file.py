"""Reads a user's file, or a data set, for fine-tuning; splits rows by a hash of their text. No jax."""

import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any, TypeVar

from data import files, rows
from data.errors import DataError, counted
from data.rows import Row, datasets

Item = TypeVar("Item")


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


def split(
  rows: Sequence[Item], is_out: Sequence[bool], path: str, fraction: float
) -> tuple[list[Item], list[Item]]:
  """Returns the rows of a training file that stay, and those held out; DataError: one part has none."""
  kept = [row for row, out in zip(rows, is_out) if not out]
  held_out = [row for row, out in zip(rows, is_out) if out]
  if not kept or not held_out:
    raise DataError(
      f"{path}: data.dev_fraction={fraction:g} holds out {len(held_out):,} of {counted(len(rows), 'row')}; "
      "expected rows in both parts; use\n  --config.data.dev_file=FILE\n  --config.data.dev_fraction=0.5"
    )
  return kept, held_out


def is_held_out(text: str, fraction: float) -> bool:
  """Returns whether a row is held out for development, by a hash of its text: equal texts stay together."""
  digest = hashlib.sha256(text.encode()).digest()
  return int.from_bytes(digest[:8], "big") < fraction * 2**64
