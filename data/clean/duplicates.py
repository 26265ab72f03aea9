"""Finds equal and nearly equal documents of all units, in two steps of pure functions over files.

`sign_unit` writes a signature of each document of a unit, and sorted hashes of its bands. `pair_range` reads
a range of these hashes from all units, compares documents that share a hash, and writes pairs of duplicates.
Then one process joins pairs to groups and writes, for each unit, which documents to drop: all in a group
except the first. The number and order of processes do not change a byte of the result.

Memory: signing takes 1 kB per document of a unit, comparing 200 MB per process, and joining 8 bytes per
document of the corpus, in one process. Sources: Broder 1997, "On the resemblance and containment of
documents"; Leskovec, Rajaraman & Ullman, "Mining of Massive Datasets", section 3.4 (bands).
"""

import dataclasses
import functools
import hashlib
import itertools
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from data import files, sources
from data.clean import rules

SIZE = 128  # numbers in a signature of MinHash
SHINGLE = 5  # words
LEAST_THRESHOLD = 0.3
LEAST_FOUND = 0.95  # chance that two documents exactly at the threshold share a band
KEYS_PER_RANGE = 2_000_000  # hashes of bands that one process sorts
BLOCK = 10_000  # documents compared, or shingles signed, at a time
JOINED = 1_000_000  # documents whose group is looked up at a time
MAPPED = 128  # memory-mapped files that are open at a time
MOST_LEADERS = 64  # documents of a band that are compared with all its others

PLACES = "units.json"  # the name of each unit for messages, see `place`
# A dropped document (`index` in its unit) and the one that is kept (index `of` in `unit`).
DROPPED = np.dtype([("index", "<u4"), ("unit", "<u4"), ("of", "<u4")])


Documents = Callable[[sources.Unit], Iterable[tuple[int, list[str]]]]  # unit -> (index in the unit, document)


class Pool(Protocol):
  """The interface of `data.prepare.engine.Pool`: maps functions over items, in several processes."""

  def map(self, function: Callable, *items: Sequence[Any], name: str) -> list[Any]: ...


@dataclasses.dataclass(frozen=True)
class Sketch:
  """How duplicates are found: signatures with an equal band of `rows` numbers are compared completely."""

  bands: int
  rows: int
  threshold: float  # documents are duplicates if at least this fraction of their signatures is equal
  shingle: int  # words in a shingle; 0: the whole text


EXACT = Sketch(bands=1, rows=8, threshold=1.0, shingle=0)


def near(threshold: float) -> Sketch:
  """Returns a `Sketch` with the longest bands that find 95 % of the pairs of similarity `threshold`."""
  found = (rows for rows in range(SIZE, 0, -1) if 1 - (1 - threshold**rows) ** (SIZE // rows) >= LEAST_FOUND)
  rows = next(found)
  return Sketch(SIZE // rows, rows, threshold, SHINGLE)


def signature(document: list[str], sketch: Sketch) -> np.ndarray | None:
  """Returns the MinHash signature of a document, [numbers] uint16; None if it has no word.

  The share of equal numbers in two signatures estimates the share of common shingles. Case is ignored. For an
  exact sketch the signature is a digest of the text.
  """
  if not sketch.shingle:
    text = "\n".join(document)
    return np.frombuffer(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest(), "<u2")
  import rensa  # here: an optional package

  tokens, width = rules.words_of([paragraph.lower() for paragraph in document])
  if not tokens:
    return None
  size = min(sketch.shingle * width, len(tokens))
  shingles = map(" ".join, zip(*(tokens[start:] for start in range(size))))
  signed = rensa.RMinHash(num_perm=SIZE, seed=0)  # pyright: ignore[reportAttributeAccessIssue]
  while block := [text.encode("utf-8", "replace") for text in itertools.islice(shingles, BLOCK)]:
    signed.update(block)
  return np.asarray(signed.digest(), "<u4").astype("<u2")


def band_keys(signed: np.ndarray, sketch: Sketch) -> np.ndarray:
  """Returns [bands] uint64: for each band a hash of its numbers in the signature and its index."""
  bands = signed[: sketch.bands * sketch.rows].reshape(sketch.bands, sketch.rows)
  hashes = (
    hashlib.blake2b(band.tobytes(), digest_size=8, salt=number.to_bytes(8, "big")).digest()
    for number, band in enumerate(bands)
  )
  return np.frombuffer(b"".join(hashes), "<u8")


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The settings, document reader and directory of intermediate files of one search for duplicates."""

  sketch: Sketch
  documents: Documents
  directory: str  # of intermediate files

  def path(self, kind: str, number: int) -> pathlib.Path:
    """Returns the path of a unit's or range's intermediate file, such as `kind` 'signatures'."""
    return pathlib.Path(self.directory) / f"{kind}-{number:06d}.npy"

  def save(self, kind: str, number: int, array: np.ndarray) -> None:
    """Writes an array to `path(kind, number)` atomically, because an engine may run two tries at once."""
    with files.whole_file(self.path(kind, number)) as aside, open(aside, "wb") as file:
      np.save(file, array)
    files.seal(self.path(kind, number))

  def is_done(self, number: int, *kinds: str) -> bool:
    """Returns whether these files of a unit or range are there and unchanged since they were written."""
    return all(files.is_sealed(self.path(kind, number)) for kind in kinds)

  def load(self, kind: str, number: int) -> np.ndarray:
    """Returns the array in the file `path(kind, number)`, memory-mapped."""
    return np.load(self.path(kind, number), mmap_mode="r", allow_pickle=False)


def sign_unit(comparison: Comparison, number: int, unit: sources.Unit) -> int:
  """Writes the signatures and hashes of one unit; returns the number of its documents with text.

  Files: `signatures` [documents, numbers] uint16; `keys` [documents x bands] uint64, sorted; `rows`, the
  document of each key; and, written last, `places` [documents] uint32, their indices in the unit.
  """
  if comparison.is_done(number, "places", "signatures", "keys", "rows"):
    return len(comparison.load("places", number))
  signed, keys, places = [], [np.zeros(0, np.uint64)], []
  for index, document in comparison.documents(unit):
    made = signature(document, comparison.sketch) if document else None
    if made is not None:
      signed.append(made)
      keys.append(band_keys(made, comparison.sketch))
      places.append(index)
  flat = np.concatenate(keys)
  order = np.argsort(flat, kind="stable")
  comparison.save("signatures", number, np.stack(signed) if signed else np.zeros((0, 1), np.uint16))
  comparison.save("keys", number, flat[order])
  comparison.save("rows", number, (order // comparison.sketch.bands).astype(np.uint32))
  comparison.save("places", number, np.asarray(places, np.uint32))
  return len(places)


def pair_range(comparison: Comparison, offsets: tuple[int, ...], ranges: int, number: int) -> None:
  """Writes `pairs` [pairs, 2] int64: duplicates that share a band hash in range `number` of `ranges`.

  A document's number is its row in its unit plus the unit's offset.
  """
  if comparison.is_done(number, "pairs"):
    return
  keys, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
  for unit, offset in enumerate(offsets[:-1]):
    there = comparison.load("keys", unit)
    start = np.searchsorted(there, np.uint64(number * 2**64 // ranges))
    last = number + 1 == ranges
    stop = there.size if last else np.searchsorted(there, np.uint64((number + 1) * 2**64 // ranges))
    keys.append(np.array(there[start:stop]))
    rows.append(comparison.load("rows", unit)[start:stop].astype(np.int64) + offset)
  flat = np.concatenate(keys)
  order = np.argsort(flat, kind="stable")  # stable: documents with the same key keep their order
  sorted_rows, borders = np.concatenate(rows)[order], np.flatnonzero(np.diff(flat[order])) + 1
  starts, stops = np.append(0, borders), np.append(borders, flat.size)
  load = functools.lru_cache(MAPPED)(functools.partial(comparison.load, "signatures"))
  signatures = functools.partial(_signatures, load, np.asarray(offsets))
  pairs = [np.zeros((0, 2), np.int64)]
  for run in np.flatnonzero(stops - starts > 1):
    pairs += _pairs(sorted_rows[starts[run] : stops[run]], signatures, comparison.sketch.threshold)
  comparison.save("pairs", number, np.unique(np.concatenate(pairs), axis=0))


def _signatures(load: Callable[[int], np.ndarray], offsets: np.ndarray, documents: np.ndarray) -> np.ndarray:
  """Returns the MinHash signatures of documents, given their ascending numbers: [documents, SIZE] uint16."""
  units = np.searchsorted(offsets, documents, side="right") - 1
  parts = [load(unit)[documents[units == unit] - offsets[unit]] for unit in np.unique(units).tolist()]
  return np.concatenate(parts)


def _pairs(
  run: np.ndarray, signatures: Callable[[np.ndarray], np.ndarray], threshold: float
) -> Iterator[np.ndarray]:
  """Yields (leader, duplicate) pairs, [pairs, 2], of the documents in `run`, which share a band.

  The first document is a leader, and then each first one that no leader resembles. So the work stays linear
  if many documents share a band. A pair that is missed here can still be found by another band.
  """
  leaders: list[tuple[int, np.ndarray]] = []
  for begin in range(0, run.size, BLOCK):
    left = run[begin : begin + BLOCK]
    signed = signatures(left)
    for number in itertools.count():
      if not left.size or number == MOST_LEADERS:
        break
      if number == len(leaders):
        leaders.append((left[0], signed[0]))
        left, signed = left[1:], signed[1:]
      leader, leading = leaders[number]
      is_like = (signed == leading).mean(1) >= threshold
      yield np.stack([np.full(is_like.sum(), leader), left[is_like]], 1)
      left, signed = left[~is_like], signed[~is_like]


def join(pairs: Iterable[np.ndarray], documents: int) -> np.ndarray:
  """Returns the first document in each document's group of duplicates: [documents] int64 numbers."""
  from scipy.sparse import coo_array, csgraph  # here: slow to import

  first = np.arange(documents)
  for array in pairs:
    members, places = np.unique(_ends(first, array), return_inverse=True)
    left, right = places.reshape(-1, 2).T
    graph = coo_array((np.ones(left.size, bool), (left, right)), shape=(members.size, members.size))
    groups, group = csgraph.connected_components(graph, directed=False)
    smallest = np.full(groups, documents)
    np.minimum.at(smallest, group, members)
    first[members] = smallest[group]
  for begin in range(0, documents, JOINED):
    first[begin : begin + JOINED] = _ends(first, first[begin : begin + JOINED])
  return first


def _ends(first: np.ndarray, documents: np.ndarray) -> np.ndarray:
  """Follows `first` from each document to the first document of its group, as far as known."""
  while not np.array_equal(ends := first[documents], documents):
    documents = ends
  return documents


def find(
  sketch: Sketch,
  documents: Documents,
  directory: pathlib.Path,
  units: Sequence[sources.Unit],
  pool: Pool,
  *,
  name: str,
) -> None:
  """Writes each unit's list of duplicates (`list_of`), and the units' names, unless the lists exist.

  `name` is the cleaning step's name in the progress display.
  """
  if directory.is_dir() and all(
    map(files.is_sealed, [directory / PLACES, *(list_of(directory, unit) for unit in units)])
  ):
    return
  shutil.rmtree(directory, ignore_errors=True)  # lists of units under other paths, or damaged ones
  parts = directory.with_suffix(".parts")
  parts.mkdir(parents=True, exist_ok=True)
  comparison = Comparison(sketch, documents, str(parts))
  sizes = pool.map(functools.partial(sign_unit, comparison), range(len(units)), units, name=f"{name}: sign")
  offsets = (0, *itertools.accumulate(sizes))
  ranges = max(1, -(-offsets[-1] * sketch.bands // KEYS_PER_RANGE))
  pair = functools.partial(pair_range, comparison, offsets, ranges)
  pool.map(pair, range(ranges), name=f"{name}: compare")
  first = join((comparison.load("pairs", number) for number in range(ranges)), offsets[-1])
  with files.whole_directory(directory) as aside:
    _write_lists(aside, comparison, units, offsets, first)
  shutil.rmtree(parts, ignore_errors=True)  # an abandoned worker may still write there


def _write_lists(
  directory: pathlib.Path,
  comparison: Comparison,
  units: Sequence[sources.Unit],
  offsets: tuple[int, ...],
  first: np.ndarray,
) -> None:
  load = functools.lru_cache(MAPPED)(functools.partial(comparison.load, "places"))
  files.write_json(directory / PLACES, list(map(place, units)))
  for number, (unit, start, stop) in enumerate(zip(units, offsets, offsets[1:])):
    is_dropped = first[start:stop] != np.arange(start, stop)
    kept = first[start:stop][is_dropped]
    dropped = np.zeros(kept.size, DROPPED)
    dropped["index"] = load(number)[is_dropped]
    dropped["unit"] = owners = np.searchsorted(offsets, kept, side="right") - 1
    dropped["of"] = [load(owner)[row - offsets[owner]] for owner, row in zip(owners.tolist(), kept.tolist())]
    np.save(list_of(directory, unit), dropped)
    files.seal(list_of(directory, unit))
  files.seal(directory / PLACES)


def list_of(directory: pathlib.Path, unit: sources.Unit) -> pathlib.Path:
  """Returns the path of a unit's list of duplicates to drop: a .npy array of DROPPED by document index."""
  return directory / f"{files.digest_json(dataclasses.asdict(unit))[:16]}.npy"


def place(unit: sources.Unit) -> str:
  """Returns a unit's name for messages: 'a.txt', or 'a.txt[1048576:]' if it starts inside the file."""
  return f"{unit.name}[{unit.start}:]" if unit.start else unit.name
