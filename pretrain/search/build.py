"""Writes an index folder from the rows of a file and their vectors, in memory that the rows do not fill."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data import errors, files, output_files, progress, rows
from data.errors import DataError, counted, named_reason
from data.rows import Row
from pretrain.embed.schema import DTYPES, unit
from pretrain.embed.texts import VECTOR, Texts
from pretrain.search import index

_BLOCK = 4096  # vectors read at once
_COMPARED = 16  # rows of stored vectors


@dataclasses.dataclass(frozen=True)
class GraphSettings:
  """Settings of an HNSW graph. Source: Malkov and Yashunin 2016, arXiv 1603.09320, M and efConstruction."""

  links: int  # of a vector to others on a layer, twice as many on the lowest
  ef_construction: int  # candidates while it is built


class StoredVectors:
  """A file of vectors written by `pretrain.embed`."""

  def __init__(self, path: pathlib.Path) -> None:
    """Reads the number and width of the vectors; DataError for other files."""
    self.path, self._is_npy = path, path.suffix.lower() == ".npy"
    advice = "give a file written by pretrain.embed, or build without --vectors"
    try:
      with errors.reading(path, advice=advice):
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
        if VECTOR not in file.schema_arrow.names:
          raise KeyError(f"no column {VECTOR!r}")
        count, numbers = file.metadata.num_rows, next(self._stored())
    if numbers.dtype.name not in DTYPES:
      raise ValueError(f"an array of {numbers.dtype}")
    return count, numbers.shape[1]

  def _stored(self) -> Iterator[np.ndarray]:
    if self._is_npy:
      array = np.load(self.path, mmap_mode="r", allow_pickle=False)
      yield from (array[start : start + _BLOCK] for start in range(0, len(array), _BLOCK))
      return
    from pyarrow import parquet

    with parquet.ParquetFile(self.path) as file:
      for batch in file.iter_batches(batch_size=_BLOCK, columns=[VECTOR]):
        values = batch.column(0)
        yield np.asarray(values.flatten()).reshape(len(values), -1)

  def blocks(self) -> Iterator[np.ndarray]:
    """Yields the vectors in order, [n, width] float32."""
    return (np.asarray(block, np.float32) for block in self._stored())

  def rows(self, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the vectors of rows, counted from 0 in ascending order, as `blocks` does."""
    start = 0
    for block in self.blocks():
      yield from (block[number - start] for number in numbers if start <= number < start + len(block))
      start += len(block)


def check(stored: StoredVectors, texts: Texts, embedder: Any) -> None:
  """Raises DataError if stored vectors are not those of passages and the model.

  Their number and width are compared, and vectors spread evenly over the rows: of the numbers of each, 5% may
  differ.
  """
  if (stored.count, stored.width) != (texts.survey.rows, embedder.width):
    raise DataError(
      f"{stored.path}: {counted(stored.count, 'vector')} of {stored.width} numbers; expected "
      f"{texts.survey.rows:,} of {embedder.width}; the input or model differs; use those of these texts"
    )
  numbers = np.unique(np.linspace(0, stored.count - 1, _COMPARED).astype(int)).tolist()
  chosen = [texts.text(row) for number, row in enumerate(rows.read(texts.path)) if number in numbers]
  vectors = embedder.vectors(embedder.inputs(chosen))
  kept = np.stack([*stored.rows(numbers)])
  kept = unit(kept)  # an index takes vectors of any length
  for number, vector, of_file in zip(numbers, vectors, kept):
    difference = np.abs(of_file - vector)
    if not np.mean(difference <= 1e-2 * np.abs(vector).max()) >= 0.95:
      raise DataError(
        f"{stored.path}: the vector of row {number + 1:,} differs by {difference.max():.1e} from that of "
        "this input and model; use those of these texts"
      )


def write(
  path: pathlib.Path,
  source: str,
  stored: StoredVectors,
  dtype: str,
  graph: GraphSettings | None,
  meta: Mapping[str, Any],
) -> float:
  """Writes the folder `path`, completely or not at all; returns the rows per second.

  Args:
    source: file with a row for each vector.
    stored: vectors of the rows; they are divided by their lengths.
    dtype: 'float32' or 'float16', of the numbers in the folder.
    graph: None for exact searches.
    meta: JSON values that index.json has besides those of files and rows.

  Raises:
    DataError: the file changed while it was read, or a vector is not finite.
    StorageError: the folder cannot be written.
  """
  before = described_input(source)
  with errors.writing(f"--index={path}"), files.whole_directory(path) as folder:
    made = None if graph is None else _graph(stored.width, dtype, graph)
    texts, offsets = rows.read(source), [np.zeros(1, np.int64)]
    with open(folder / index.VECTORS, "wb") as file, open(folder / index.ROWS, "wb") as lines:
      vectors = output_files.Npy(file, VECTOR, stored.width, dtype)
      shown, done = progress.Progress(stored.count), 0
      for block in stored.blocks():
        if not np.isfinite(block).all():
          raise DataError(f"{stored.path}: a vector is not finite; float16 overflows without --unit")
        numbers = unit(block).astype(dtype)
        vectors.write([{VECTOR: vector} for vector in numbers])
        encoded = [_line(row) for row in itertools.islice(texts, len(block))]
        lines.write(b"".join(encoded))
        offsets.append(offsets[-1][-1] + np.cumsum([len(line) for line in encoded]))
        if made is not None:
          made.add(numbers.astype(np.float32))
        done += len(block)
        shown.update(done)
      vectors.close()
      speed = shown.close(done)
    np.save(folder / index.OFFSETS, np.concatenate(offsets))
    if made is not None:
      index.faiss().write_index(made, str(folder / index.GRAPH))
    if described_input(source)["sha256"] != before["sha256"]:
      raise DataError(f"{source}: changed while it was read; run the same command again")
    written = {file.name: [file.stat().st_size, files.sha256(file)] for file in sorted(folder.iterdir())}
    whole = {"version": index.VERSION, **meta, "rows": stored.count, "input": before, "files": written}
    files.write_json(folder / index.FILE, {**whole, "sha256": index.digest(whole)})
  return speed


def described_input(source: str) -> dict[str, Any]:
  """Returns the path, size and time, and sha256 of a file as index.json has them."""
  path = pathlib.Path(source).absolute()
  with errors.reading(path, advice="repair this file"):
    status = path.stat()
    return {"path": str(path), "status": [status.st_size, status.st_mtime_ns], "sha256": files.sha256(path)}


def _graph(width: int, dtype: str, settings: GraphSettings) -> Any:
  """Returns an empty faiss index, whose own vectors are float32, or float16 if `dtype` is."""
  library = index.faiss()
  metric = library.METRIC_INNER_PRODUCT
  if dtype == "float16":
    kind = library.ScalarQuantizer.QT_fp16
    made = library.IndexHNSWSQ(width, kind, settings.links, metric)
    made.train(np.zeros((1, width), np.float32))  # float16 has nothing to learn, but faiss asks for it
  else:
    made = library.IndexHNSWFlat(width, settings.links, metric)
  made.hnsw.efConstruction = settings.ef_construction
  return made


def _line(row: Row) -> bytes:
  return output_files.json_line(row.fields)
