"""Writes an index folder from the rows of a file and their vectors, in memory that the rows do not fill."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from data import errors, files, progress, rows
from data.errors import DataError
from data.output import formats
from data.rows import Row
from pretrain.embed import dtypes
from pretrain.embed.neighbours import StoredVectors
from pretrain.search import index


@dataclasses.dataclass(frozen=True)
class GraphSettings:
  """Settings of an HNSW graph. Source: Malkov and Yashunin 2016, arXiv 1603.09320, M and efConstruction."""

  links: int  # of a vector to others on a layer, twice as many on the lowest
  ef_construction: int  # candidates while it is built


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
    dtype: one of `dtypes.DTYPES`, in which the folder has them.
    graph: None for exact searches.
    meta: JSON values that index.json has besides those of files and rows.

  Raises:
    DataError: the file changed while it was read, or a vector is not finite.
    StorageError: the folder cannot be written.
  """
  before = described_input(source)
  with errors.writing(f"--index={path}"), files.whole_directory(path) as folder:
    described = {"descr": dtypes.stored_type(dtype).str, "fortran_order": False}
    shape = (stored.count, dtypes.stored_width(stored.width, dtype))
    made = None if graph is None else _graph(stored.width, dtype, graph)
    texts, offsets = rows.read(source), [np.zeros(1, np.int64)]
    with open(folder / index.VECTORS, "wb") as vectors, open(folder / index.ROWS, "wb") as lines:
      np.lib.format.write_array_header_1_0(vectors, {**described, "shape": shape})
      shown, done = progress.RowProgress(stored.count), 0
      for block in stored.blocks():
        if not np.isfinite(block).all():
          raise DataError(f"{stored.path}: a vector is not finite; float16 overflows without --unit")
        numbers = dtypes.compressed(dtypes.unit(block), dtype)
        vectors.write(numbers.tobytes())
        encoded = [_line(row) for row in itertools.islice(texts, len(block))]
        lines.write(b"".join(encoded))
        offsets.append(offsets[-1][-1] + np.cumsum([len(line) for line in encoded]))
        if made is not None:
          made.add(dtypes.restored(numbers))
        done += len(block)
        shown.update(done, done)
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
  return formats.JsonLines().encode([row.fields])
