"""Opens an index folder and finds the nearest rows; vectors and rows stay on disk. No jax."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from data import files
from data.errors import ConfigError, DataError, named_reason
from pretrain.embed.schema import DTYPES

FILE, VERSION = "index.json", 2
VECTORS, ROWS, OFFSETS, GRAPH = "vectors.npy", "rows.jsonl", "offsets.npy", "hnsw.faiss"
KINDS = ("flat", "hnsw")
_SCORES = 1 << 22  # numbers that an exact search computes at once
_FEWEST, _MOST = 1 << 10, 1 << 16  # vectors that it reads at once


def faiss() -> Any:
  """Imports and returns faiss; ConfigError with the line that installs it."""
  try:
    import faiss as library  # here: only HNSW needs it
  except ImportError as error:
    raise ConfigError(
      "--kind=hnsw needs faiss, which is not installed; install it, or search exactly\n"
      "  pip install -r requirements-embeddings.txt\n  --kind=flat"
    ) from error
  return library


@dataclasses.dataclass(frozen=True)
class SearchIndex:
  """An opened index folder: its description, and its vectors and rows on disk."""

  path: pathlib.Path
  meta: dict[str, Any]  # the content of index.json
  vectors: np.ndarray  # [rows, width] of unit length, float32 or float16, memory-mapped
  offsets: np.ndarray  # [rows + 1] int64, where the lines of rows.jsonl begin
  graph: Any = None  # faiss.IndexHNSW, memory-mapped; None: every search is exact

  @classmethod
  def read(cls, path: pathlib.Path) -> "SearchIndex":
    """Opens an index folder; DataError if it is missing, damaged or of another version.

    ConfigError: its graph needs faiss, which is not installed.
    """
    if not (path / FILE).is_file():
      raise DataError(f"{path}: not an index, it has no {FILE}; build it\n  --index={path} --input=FILE")
    with _damaged(path):
      meta = json.loads((path / FILE).read_bytes())
      if meta["version"] != VERSION:
        raise DataError(f"{path}: version {meta['version']}, expected {VERSION}; {again(path)}")
      _check(meta)
      for name, (size, sha256) in meta["files"].items():
        if (path / name).stat().st_size != size:
          raise ValueError(f"{name} has {(path / name).stat().st_size:,} bytes, expected {size:,}")
        if files.sha256(path / name) != sha256:
          raise ValueError(f"{name} has another sha256")
    graph = None
    if meta["kind"] == "hnsw":
      library = faiss()
      with _damaged(path):
        graph = library.read_index(str(path / GRAPH), library.IO_FLAG_MMAP_IFC)
    with _damaged(path):
      vectors, offsets = (
        np.load(path / name, mmap_mode="r", allow_pickle=False) for name in (VECTORS, OFFSETS)
      )
      if {len(vectors), len(offsets) - 1, graph.ntotal if graph else len(vectors)} != {meta["rows"]}:
        raise ValueError(f"its files have other numbers of rows than {meta['rows']:,}")
      if vectors.ndim != 2 or vectors.shape[1] != meta["size"] or vectors.dtype != meta["dtype"]:
        raise ValueError(
          f"vectors {vectors.shape[1:]} of {vectors.dtype}, not {meta['size']} of {meta['dtype']}"
        )
      if (np.diff(offsets) < 1).any() or offsets[[0, -1]].tolist() != [0, meta["files"][ROWS][0]]:
        raise ValueError(f"{OFFSETS} does not fit {ROWS}")
    return cls(path, meta, vectors, offsets, graph)

  def refuse_changed_input(self) -> None:
    """Raises DataError if the file that was indexed is still there, but with other content."""
    known = self.meta["input"]
    source = pathlib.Path(known["path"])
    with contextlib.suppress(OSError):  # it may be gone: the index has all rows
      if not source.is_file():  # an index of somebody else may name a device or a pipe, which never end
        return
      status = source.stat()
      if [status.st_size, status.st_mtime_ns] == known["status"] or files.sha256(source) == known["sha256"]:
        return
      raise DataError(
        f"{source} was changed after {self.path} was built from it; {again(self.path, self.meta)}"
      )

  def nearest(
    self, queries: np.ndarray, top: int, *, ef_search: int = 0, is_exact: bool = False
  ) -> tuple[np.ndarray, np.ndarray]:
    """Finds rows [n, top] int64 and cosines [n, top] float32 of unit queries [n, width], the nearest first.

    A graph may find fewer than `top`: then the last rows are -1.

    Args:
      ef_search: candidates of a search in the graph, at least `top`; more find more and take longer.
      is_exact: compares with all vectors although there is a graph.
    """
    if self.graph is None or is_exact:
      return exact_nearest(self.vectors, queries, top)
    self.graph.hnsw.efSearch = max(ef_search, top)
    _, rows = self.graph.search(np.ascontiguousarray(queries, np.float32), min(top, len(self.vectors)))
    cosines = np.einsum("nw,ntw->nt", queries, np.asarray(self.vectors[rows], np.float32))
    cosines[rows < 0] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(cosines, order, axis=1)

  def fields(self, row: int) -> dict[str, Any]:
    """Returns the columns of a row, counted from 0, of the indexed file; DataError if it is damaged."""
    with _damaged(self.path), open(self.path / ROWS, "rb") as file:
      file.seek(self.offsets[row])
      columns = json.loads(file.read(self.offsets[row + 1] - self.offsets[row]))
      if self.meta["column"] not in columns:
        raise ValueError(f"row {row + 1:,} has no column {self.meta['column']!r}")
      return columns

  def recall(self, *, sample: int, top: int, ef_search: int) -> float:
    """Returns the fraction of the exact `top` neighbours of sampled rows that the graph finds.

    The rows are spread evenly and are not their own neighbours. Of rows with equal cosines, any counts. Texts
    that are no rows find fewer: the graph was built around its rows.
    """
    if len(self.vectors) < 2:
      return 1.0
    chosen = np.unique(np.linspace(0, len(self.vectors) - 1, sample).astype(np.int64))
    queries = np.asarray(self.vectors[chosen], np.float32)
    _, expected = self.nearest(queries, top + 1, is_exact=True)
    _, cosines = self.nearest(queries, top + 1, ef_search=ef_search)
    # The row itself is the first of both; rounding of the same inner product differs by 1e-7.
    return float(np.mean(cosines[:, 1:] >= expected[:, -1:] - 1e-6))


def exact_nearest(stored: np.ndarray, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
  """Finds the rows of `stored` with the largest inner products with each of the queries [n, width] float32.

  `stored` [rows, width] is float32 or float16 and may be larger than memory; it is read once.

  Returns:
    Rows [n, top] int64 and inner products [n, top] float32, the largest first; all rows, if there are
    fewer than `top`.
  """
  top, step = min(top, len(stored)), min(max(_SCORES // len(queries), _FEWEST), _MOST)
  products = np.full((len(queries), top), -np.inf, np.float32)
  rows = np.zeros((len(queries), top), np.int64)
  for start in range(0, len(stored), step):
    of_block = queries @ np.asarray(stored[start : start + step], np.float32).T
    # Most blocks have no better row for most queries, so little is sorted.
    better = np.flatnonzero(of_block.max(axis=1) > products[:, -1])
    numbers = np.broadcast_to(np.arange(start, start + of_block.shape[1]), (len(better), of_block.shape[1]))
    joined = np.concatenate([products[better], of_block[better]], axis=1)
    chosen = _largest(joined, top)
    products[better] = np.take_along_axis(joined, chosen, axis=1)
    rows[better] = np.take_along_axis(np.concatenate([rows[better], numbers], axis=1), chosen, axis=1)
  return rows, products


def _largest(values: np.ndarray, top: int) -> np.ndarray:
  """Returns the places [n, top] of the largest values [n, m], the largest first."""
  places = np.argpartition(-values, top - 1, axis=1)[:, :top]
  order = np.argsort(-np.take_along_axis(values, places, axis=1), axis=1)
  return np.take_along_axis(places, order, axis=1)


def again(path: pathlib.Path, meta: Mapping[str, Any] | None = None) -> str:
  """Returns advice for messages: how to build an index again, with the flags that index.json (`meta`) has."""
  flags = "--input=FILE"
  if meta is not None:
    flags = f"--input={meta['input']['path']}"
    flags += "".join(f" --{name}={meta[name]}" for name in ("column", "kind", "dtype", "size"))
  return f"build it again:\n  rm -r {path}\n  --index={path} {flags}"


def _check(meta: Mapping[str, Any]) -> None:
  """Raises ValueError, KeyError or TypeError unless index.json has the values that `build.write` writes."""
  source, known = meta["input"], {VECTORS, ROWS, OFFSETS} | ({GRAPH} if meta["kind"] == "hnsw" else set())
  is_right = {
    "sha256": meta["sha256"] == digest(meta),
    "kind": meta["kind"] in KINDS,
    "dtype": meta["dtype"] in DTYPES,
    "rows": type(meta["rows"]) is int and meta["rows"] > 0,
    "size": type(meta["size"]) is int and meta["size"] > 0,
    "column": isinstance(meta["column"], str),
    "model": isinstance(meta["model"], str),
    "schema": isinstance(meta["schema"], dict),
    "input": isinstance(source["path"], str)
    and "\0" not in source["path"]
    and isinstance(source["sha256"], str),
    "files": set(meta["files"]) == known and all(len(described) == 2 for described in meta["files"].values()),
  }
  if wrong := [name for name, right in is_right.items() if not right]:
    raise ValueError(f"{FILE} has another {wrong[0]} than was written")


def digest(meta: Mapping[str, Any]) -> str:
  """Returns the sha256 of index.json's values without their own."""
  return files.digest_json({name: value for name, value in meta.items() if name != "sha256"})


@contextlib.contextmanager
def _damaged(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
    raise DataError(f"{path}: damaged ({named_reason(error, most=80)}); {again(path)}") from error
