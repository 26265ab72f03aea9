"""Reads CoNLL files: one word per line, columns separated by tabs or spaces, blank lines after sentences."""

import re
from collections.abc import Iterator

from data import errors, text_files
from data.errors import DataError, counted
from data.rows.values import Row

ENDINGS = (".conll", ".conllu", ".conllx", ".iob", ".iob2", ".bio", ".bioes")
_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(" +")  # not \s: a word may contain a no-break space
_NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: multiword tokens and empty nodes


def kind_of(path: str) -> str:
  """Returns 'conll' if a file's name, without '.gz' or '.zst', has an ending of CoNLL; else ''."""
  return "conll" if text_files.unpacked_name(path).endswith(ENDINGS) else ""


def read_conll(path: str) -> Iterator[Row]:
  """Yields a row for each sentence: {'1': its first column, '2': ...}, lists of str of equal length.

  A row's number is the line of its first word. Comments before a sentence, document lines of CoNLL-2003, and
  multiword and empty tokens of CoNLL-U are skipped.

  Raises:
    DataError, with file and line: the file cannot be read, is not UTF-8, or has differing numbers of columns.
  """
  width, has_tabs, has_ids = _shape(path)
  with errors.reading(path, advice="repair this file"), text_files.open_file(path) as file:
    text_files.check_start(path, file)
    sentence: list[list[str]] = []
    first = 0
    for number, raw in text_files.bounded_lines(path, file, 0, -1):
      cells = _cells(path, number, raw)
      is_comment = (
        raw.startswith(b"#") and not sentence and (len(cells) != width or (has_tabs and b"\t" not in raw))
      )
      if is_comment or (cells and cells[0] == _DOCUMENT):
        continue
      if not cells:
        if sentence:
          yield _row(path, first, sentence)
        sentence = []
        continue
      if len(cells) != width:
        where = text_files.place(path, number, "line")
        raise DataError(f"{where}: {counted(len(cells), 'column')}, expected {width} as before")
      if has_ids and _NOT_A_WORD.fullmatch(cells[0]):
        continue
      first = first if sentence else number
      sentence.append(cells)
    if sentence:
      yield _row(path, first, sentence)


def _shape(path: str) -> tuple[int, bool, bool]:
  """Returns the number of columns in the first line of a word, whether tabs separate them, and ids are first.

  The number of columns distinguishes comments from words that begin with '#'. Ids number all words of a
  first sentence, before two other columns at least: a word may be a number, too.
  """
  width, has_tabs, firsts = 0, False, []
  with errors.reading(path, advice="repair this file"), text_files.open_file(path) as file:
    text_files.check_start(path, file)
    for number, raw in text_files.bounded_lines(path, file, 0, -1):
      cells = [] if raw.startswith(b"#") and not firsts else _cells(path, number, raw)
      if firsts and not cells:
        break
      if cells and cells[0] != _DOCUMENT:
        width, has_tabs = (width, has_tabs) if firsts else (len(cells), b"\t" in raw)
        firsts.append(cells[0])
  words = [first for first in firsts if not _NOT_A_WORD.fullmatch(first)]
  is_numbered = bool(words) and words == [str(at) for at in range(1, len(words) + 1)]
  return width, has_tabs, has_tabs and width > 2 and is_numbered


def _cells(path: str, number: int, raw: bytes) -> list[str]:
  try:
    line = raw.decode("utf-8").rstrip("\r\n")
  except UnicodeDecodeError:
    where = text_files.place(path, number, "line")
    raise DataError(f"{where}: not UTF-8; convert the whole file, for example with iconv") from None
  return [] if not line.strip() else line.split("\t") if "\t" in line else _SPACES.split(line.strip(" "))


def _row(path: str, number: int, sentence: list[list[str]]) -> Row:
  columns = {str(at): list(column) for at, column in enumerate(zip(*sentence), 1)}
  return Row(columns, number, path, "line")
