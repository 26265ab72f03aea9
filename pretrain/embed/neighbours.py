"""Finds the texts whose vectors have the largest cosine with a query, also in stored files of vectors."""

import heapq
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data.errors import DataError, named_reason, reading
from pretrain.embed.dtypes import DTYPES, restored, stored_type, unit

_BLOCK = 4096  # vectors read at once


class Neighbour(NamedTuple):
  """A text with its cosine to the query; neighbours are ordered by cosine."""

  cosine: float
  order: int  # minus the row number, so that the first of equal rows counts as nearer
  place: str
  text: str


def line(cosine: float, place: str, text: str) -> str:
  """Returns a line for people: a text's cosine to the query, its file and row, and its first words."""
  text = " ".join(text.split())
  return f"{cosine:7.4f}  {place}: {text if len(text) <= 160 else text[:159] + '…'}"


class Nearest:
  """Collects, of all added texts, those whose vectors have the largest cosine with a query."""

  def __init__(self, query: np.ndarray, most: int) -> None:
    """Keeps the `most` texts whose vectors have the largest cosine with `query`, [width]."""
    self._query, self._most, self._seen = unit(query[None])[0], most, 0
    self._kept: list[Neighbour] = []

  def add(self, vectors: np.ndarray, texts: Sequence[tuple[str, str]]) -> None:
    """Adds n texts, as ('file, row 12', text), with their vectors [n, width]."""
    cosines = unit(vectors) @ self._query
    candidates = [
      Neighbour(float(cosine), -(self._seen + at), *texts[at]) for at, cosine in enumerate(cosines.tolist())
    ]
    self._seen += len(texts)
    self._kept = heapq.nlargest(self._most, [*self._kept, *candidates])

  def lines(self) -> Iterator[str]:
    """Returns a `line` for each kept text, the nearest first."""
    return (line(neighbour.cosine, neighbour.place, neighbour.text) for neighbour in self._kept)


class StoredVectors:
  """A file of vectors written by `pretrain.embed`."""

  def __init__(self, path: pathlib.Path, column: str) -> None:
    """Reads the number and width of the vectors (Parquet: in `column`); DataError for other files."""
    self.path, self._column, self._is_npy = path, column, path.suffix.lower() == ".npy"
    advice = "give a file written by pretrain.embed, or another --output"
    try:
      with reading(path, advice=advice):
        self.count, self.width = self._shape()
    except (ValueError, KeyError, StopIteration, AttributeError) as error:  # the last: a column of no lists
      raise DataError(f"{path}: not a file of vectors ({named_reason(error)}); {advice}") from error

  def _shape(self) -> tuple[int, int]:
    if self._is_npy:
      array = np.load(self.path, mmap_mode="r", allow_pickle=False)
      if array.ndim != 2:
        raise ValueError(f"an array {array.shape}")
      count, numbers = len(array), array[:1]
    else:
      from pyarrow import parquet  # not at the top, because it imports slowly

      with parquet.ParquetFile(self.path) as file:
        if self._column not in file.schema_arrow.names:
          raise KeyError(f"no column {self._column!r}")
        count, numbers = file.metadata.num_rows, next(self._stored())
    known = {stored_type(dtype): dtype for dtype in DTYPES}
    if numbers.dtype not in known:
      raise ValueError(f"an array of {numbers.dtype}")
    self.dtype = known[numbers.dtype]  # one of DTYPES
    return count, restored(numbers[:1]).shape[1]

  def _stored(self) -> Iterator[np.ndarray]:
    if self._is_npy:
      array = np.load(self.path, mmap_mode="r", allow_pickle=False)
      yield from (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK))
      return
    from pyarrow import parquet

    with parquet.ParquetFile(self.path) as file:
      for batch in file.iter_batches(batch_size=_BLOCK, columns=[self._column]):
        values = batch.column(0)
        yield np.asarray(values.flatten()).reshape(len(values), -1)

  def blocks(self) -> Iterator[np.ndarray]:
    """Yields the vectors in order, [n, width] float32; those of int8 and bits have unit length."""
    return map(restored, self._stored())

  def rows(self, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the vectors of rows, counted from 0 in ascending order, as `blocks` does."""
    start = 0
    for block in self.blocks():
      yield from (block[number - start] for number in numbers if start <= number < start + len(block))
      start += len(block)


def look(nearest: Nearest, blocks: Iterable[np.ndarray], texts: Iterator[tuple[str, str]]) -> None:
  """Adds all vectors of `blocks`, with the texts in the same order, to `nearest`."""
  for vectors in blocks:
    nearest.add(vectors, [next(texts) for _ in range(len(vectors))])
