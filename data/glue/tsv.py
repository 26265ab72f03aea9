"""Reads GLUE tasks from files: the official TSV files, and a generic TSV for subsets.

A row is a line, tabs separate columns, and quotes are ordinary characters. All official files are UTF-8, some
with a byte-order mark.
"""

import os
import pathlib
from collections.abc import Iterator, Sequence

from data import errors, files
from data.glue.tasks import GlueTask, Split, labels_of

_SUBSET = ".subset.tsv"  # ending of a file in the generic layout


def find(directory: str | os.PathLike, task: GlueTask, split: str) -> pathlib.Path | None:
  """Returns the file of a split in a folder of tasks, preferring official files; None if there is none."""
  for folder in task.folders:
    folder_path = pathlib.Path(directory).expanduser() / folder
    names = [f"{stem}.tsv" for stem in dict(task.stems).get(split, (split,))]
    # Subsets have a single development set, also for MNLI.
    names.append(("dev" if split == "dev_matched" else split) + _SUBSET)
    for name in names:
      if path := existing(folder_path / name):
        return path
  return None


def existing(path: pathlib.Path) -> pathlib.Path | None:
  """Returns `path` if it exists, else `path` with '.gz' if that exists, else None."""
  packed = path.with_name(path.name + ".gz")
  return path if path.is_file() else packed if packed.is_file() else None


def read(path: pathlib.Path, task: GlueTask, split: str) -> Split:
  """Reads a split from a file in the official layout, or in the generic one if its name says 'subset'.

  Rows of QQP with a wrong number of columns are dropped, as in fairseq. DataError: the file is damaged, empty
  or not UTF-8; a column is missing or repeated; a row has a wrong number of columns; a label is unknown or
  out of range.
  """
  is_generic = path.name.removesuffix(".gz").endswith(_SUBSET)
  is_test = split.startswith("test")
  header = () if is_generic or is_test else task.headerless
  text_names = ("sentence1", "sentence2")[: len(task.texts)] if is_generic else task.texts
  label_name = "label" if is_generic else task.label
  widths = () if is_generic else task.widths
  drops = task.ragged_rows_dropped and not is_test and not is_generic
  table = _Table(path, header, widths=widths, ragged_rows_dropped=drops)
  text_columns = [table.column(name) for name in text_names]
  label: int | None = None
  if widths:
    label = -1
  elif label_name in table.header or not is_test:
    label = table.column(label_name)
  index = next((table.header.index(name) for name in ("index", "id") if name in table.header), None)
  texts: list[list[str]] = [[] for _ in text_columns]
  label_texts, ids, lines, unlabelled = [], [], [], 0
  for line, fields in table.rows():
    if task.unlabelled and label is not None and fields[label] == task.unlabelled:
      unlabelled += 1
      continue
    lines.append(line)
    for column, values in zip(text_columns, texts):
      values.append(fields[column])
    label_texts.append("" if label is None else fields[label])
    ids.append(str(len(ids)) if index is None else fields[index])
  if not lines:
    raise errors.DataError(f"{path}: no rows; expected the {split} split of {task.name}")
  labels = None
  if label is not None:
    labels = labels_of(task, split, label_texts, lambda row: f"{path}:{lines[row]}")
  source = f"{path} (a subset: its results are not GLUE scores)" if is_generic else str(path)
  return Split(
    first=texts[0],
    second=texts[1] if len(texts) > 1 else None,
    labels=labels,
    ids=ids,
    dropped=table.dropped + unlabelled,
    source=source,
    is_official=not is_generic and len(lines) in task.sizes[split],
  )


class _Table:
  """A TSV file: `rows` checks each line's number of columns; `dropped` counts the lines it dropped."""

  def __init__(
    self,
    path: pathlib.Path,
    header: Sequence[str],
    *,
    widths: tuple[int, ...] = (),
    ragged_rows_dropped: bool = False,
  ):
    self._path = path
    self._lines = files.read_text(path).split("\n")
    if self._lines[-1] == "":
      self._lines.pop()
    if not self._lines:
      raise errors.DataError(f"{path}: empty file; copy it again")
    self._start = 0 if header else 1
    self.header = list(header) or self._fields(0)
    self._widths = widths or (len(self.header),)
    self._ragged_rows_dropped = ragged_rows_dropped
    self.dropped = 0
    if twice := sorted({name for name in self.header if self.header.count(name) > 1}):
      raise errors.DataError(
        f"{path}:1: column {errors.listed(map(repr, twice))} twice; name each column once"
      )

  def column(self, name: str) -> int:
    """Returns the index of the column `name`; DataError if the header lacks it."""
    if name in self.header:
      return self.header.index(name)
    raise errors.DataError(
      f"{self._path}:1: no column {name!r}; found {errors.listed(self.header)}; is this the right file?"
    )

  def _fields(self, number: int) -> list[str]:
    return self._lines[number].removesuffix("\r").split("\t")

  def rows(self) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number from 1, cells) of each row; a wrong number of cells: DataError, or dropped."""
    for number in range(self._start, len(self._lines)):
      fields = self._fields(number)
      if len(fields) in self._widths:
        yield number + 1, fields
      elif self._ragged_rows_dropped:
        self.dropped += 1
      else:
        raise errors.DataError(
          f"{self._path}:{number + 1}: {errors.counted(len(fields), 'column')}, expected "
          f"{' or '.join(map(str, self._widths))}, separated by tabs (quotes mean nothing); correct this row"
        )
