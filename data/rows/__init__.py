"""Reads the rows of a user's file: CSV, TSV, JSONL, Parquet, Arrow, CoNLL, lines of text.

The file's ending decides the format; `.gz` or `.zst` may follow it, except for Parquet and Arrow. `-` is
standard input.
"""

from data.rows.conll import read_conll
from data.rows.read import classes, columns, documents, read
from data.rows.values import Row, as_list

__all__ = ["Row", "as_list", "classes", "columns", "documents", "read", "read_conll"]
