"""Reads the rows of a user's file: CSV, TSV, JSONL, Parquet, Arrow, CoNLL, lines of text.

The file's ending decides the format; `.gz` or `.zst` may follow it, except for Parquet and Arrow. `-` is
standard input.
"""

from data.rows.conll import read_conll
from data.rows.read import classes, columns, read
from data.rows.row import Row
from data.rows.values import as_list

__all__ = ["Row", "as_list", "classes", "columns", "read", "read_conll"]
