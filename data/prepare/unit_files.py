"""Reads and writes the files of a packed unit: records in order of shuffle keys, so a shard is a range.

An engine may run a unit twice at the same time, for example as a retry of a slow try. So each try writes into
its own directory and renames the files when all are complete, the counts last. All tries write the same
bytes, so it does not matter whose files stay.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import pathlib
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from data import files

logger = logging.getLogger(__name__)

IDS_AT_ONCE = 4 << 20  # ids sorted in memory at a time: the unit of a large .gz does not fit in memory
COUNTS = "json"  # kind of the file that is written last
MOST_KEYS = 2**64


def path(work: pathlib.Path, number: int, what: str) -> pathlib.Path:
  """Returns the path of a packed unit's file, such as `what` 'unigram' or 'train.ids'."""
  return work / f"unit-{number:06d}.{what}"


def counts_of(work: pathlib.Path, number: int) -> dict[str, int] | None:
  """Returns the counts of a unit that is packed; None if it is not, or if a file of it was damaged since."""
  done = path(work, number, COUNTS)
  if not done.is_file():
    return None
  try:
    written = json.loads(done.read_bytes())
    if all(files.sha256(path(work, number, what)) == digest for what, digest in written["files"].items()):
      return written["counts"]
  except (ValueError, KeyError, TypeError, AttributeError, OSError):
    pass
  logger.warning(f"{done}: its files changed since they were written; this part is packed again")
  done.unlink()
  return None


def write_counts(aside: pathlib.Path, counts: Mapping[str, int]) -> None:
  """Writes the counts of a unit, and the sha256 of its other files, as the last file of a try."""
  digests = {file.name: files.sha256(file) for file in sorted(aside.iterdir())}
  (aside / COUNTS).write_text(json.dumps({"counts": counts, "files": digests}, sort_keys=True))


@contextlib.contextmanager
def attempt(work: pathlib.Path, number: int) -> Iterator[pathlib.Path]:
  """Yields a temporary directory; its files are renamed into `work` if the block that writes succeeds."""
  aside = path(work, number, f"{secrets.token_hex(4)}.part")
  aside.mkdir()
  try:
    with files.full_disk_at(path(work, number, COUNTS)):
      yield aside
      # If another try has finished, its files stay: a reader on a network file system may have them open.
      if not path(work, number, COUNTS).exists():
        for file in sorted(aside.iterdir(), key=lambda file: file.name == COUNTS):
          file.rename(path(work, number, file.name))
  finally:
    shutil.rmtree(aside, ignore_errors=True)


def shuffle_keys(seed: int, unit: int, records: int) -> np.ndarray:
  """Returns the shuffle keys of a unit's records, in the order of the text: [records] uint64.

  SplitMix64 over (seed, unit, index), written out because NumPy's streams may change between versions.
  """
  start = int.from_bytes(hashlib.blake2b(f"{seed} {unit}".encode(), digest_size=8).digest(), "little")
  with np.errstate(over="ignore"):
    x = np.uint64(start) + np.arange(1, records + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Unsorted:
  """Collects the records of one split of a unit on disk, in the order of the text, and sorts them."""

  def __init__(self, directory: pathlib.Path, split: str, dtype: np.dtype) -> None:
    self._directory, self._split, self._dtype = directory, split, dtype
    self._path = directory / "unsorted" / split
    self._path.parent.mkdir(exist_ok=True)
    self._path.touch()
    self._sizes = [np.zeros(0, np.int64)]

  def add(self, records: Sequence[np.ndarray], flat: np.ndarray) -> None:
    """Appends records; `flat` holds their ids, one record after another."""
    with open(self._path, "ab") as file:
      flat.astype(self._dtype).tofile(file)
    self._sizes.append(np.fromiter(map(len, records), np.int64, len(records)))

  def sort(self, seed: int, unit: int) -> None:
    """Writes records in key order (`<split>.ids`), their keys and ends (`.index`, [2, records] uint64)."""
    sizes = np.concatenate(self._sizes)
    keys = shuffle_keys(seed, unit, sizes.size)
    order = np.argsort(keys, kind="stable")
    places = np.stack([np.cumsum(sizes) - sizes, np.cumsum(sizes)], axis=1)[order]
    ends = np.cumsum(sizes[order])
    unsorted = _mapped(self._path, self._dtype)
    with open(self._directory / f"{self._split}.ids", "wb") as file:
      for part in np.split(places, np.searchsorted(ends, range(IDS_AT_ONCE, unsorted.size, IDS_AT_ONCE))):
        np.concatenate([unsorted[:0], *(unsorted[a:b] for a, b in part.tolist())]).tofile(file)
    index = np.stack([keys[order], ends.astype(np.uint64)])
    index.astype("<u8").tofile(self._directory / f"{self._split}.index")
    self._path.unlink()
    with contextlib.suppress(OSError):
      self._path.parent.rmdir()


@dataclasses.dataclass(frozen=True)
class Records:
  """A range of the records of one split of a unit, in order of their shuffle keys."""

  keys: np.ndarray  # [records] uint64, ascending
  ends: np.ndarray  # [records] uint64: end of each record in the file of ids
  start: int  # start of the first record in the file of ids
  path: pathlib.Path  # of that file
  dtype: np.dtype  # of an id

  @classmethod
  def open(cls, work: pathlib.Path, number: int, split: str, dtype: np.dtype) -> "Records":
    """Returns all records of a split of a packed unit; the files are memory-mapped, not read."""
    keys, ends = _mapped(path(work, number, f"{split}.index"), np.dtype("<u8")).reshape(2, -1)
    return cls(keys, ends, 0, path(work, number, f"{split}.ids"), dtype)

  @property
  def tokens(self) -> int:
    """The number of ids in the records."""
    return int(self.ends[-1]) - self.start if self.ends.size else 0

  def between(self, low: int, high: int) -> "Records":
    """Returns the records with low <= key < high; `high` may be 2^64.

    Keys and ends are copied, because each mapped file takes a descriptor and there are thousands of units.
    """
    first, last = (
      self.keys.size if key >= MOST_KEYS else int(np.searchsorted(self.keys, np.uint64(key)))
      for key in (low, high)
    )
    start = int(self.ends[first - 1]) if first else self.start
    keys, ends = np.array(self.keys[first:last]), np.array(self.ends[first:last])
    return dataclasses.replace(self, keys=keys, ends=ends, start=start)

  def read(self) -> np.ndarray:
    """Returns the ids of all records, concatenated.

    One read is faster: with memory-mapping, single records of thousands of units cost a page fault each, 7 s
    per shard.
    """
    offset = self.start * self.dtype.itemsize
    return np.fromfile(self.path, self.dtype, count=self.tokens, offset=offset)

  def cut(self) -> list[np.ndarray]:
    """Returns a list with the ids of each record."""
    return np.split(self.read(), (self.ends[:-1] - np.uint64(self.start)).astype(np.int64))[: self.keys.size]


def _mapped(path: pathlib.Path, dtype: np.dtype) -> np.ndarray:
  if not path.stat().st_size:  # an empty file cannot be mapped
    return np.zeros(0, dtype)
  return np.asarray(np.memmap(path, dtype, mode="r"))
