"""Reads packed records for training: the rows of any step are found by arithmetic, without TensorFlow.

The order depends only on (seed, epoch, position), where position = step * batch size + row. So any number of
hosts reads the same global batches, and step 1,000,000 is found as fast as step 0.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from data import errors, files, manifest

# The sha256 of a split's files is checked at the start up to this size (1 s per GB). In larger splits
# ArrayRecord's own checksums detect damage when a record is read.
DIGEST_CHECK_BYTES = 256 << 20
UNIGRAM = "unigram.npy"


def unigram(directory: str | os.PathLike) -> np.ndarray:
  """Returns the count of each id in the training records, [vocab] int64; DataError if it is damaged."""
  path = os.path.join(directory, UNIGRAM)
  with errors.reading(path, advice="prepare the records again"):
    if (known := manifest.read(directory).unigram) and files.sha256(path) != known:
      raise errors.DataError(f"{path}: not the file of these records (sha256); prepare the records again")
    try:
      return np.load(path, allow_pickle=False)
    except (EOFError, ValueError) as error:
      raise errors.DataError(
        f"{path}: not an array ({errors.reason(error)}); prepare the records again"
      ) from error


class TrainingRecords(Protocol):
  """The interface of records for training; `PackedRecords` documents the methods."""

  @property
  def vocabulary(self) -> manifest.VocabularyInfo: ...

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]: ...

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray: ...

  def numbered(self, numbers: Sequence[int]) -> np.ndarray: ...


class HeldoutRecords(Protocol):
  """The interface of records for evaluation; `PackedRecords` documents the methods."""

  @property
  def vocabulary(self) -> manifest.VocabularyInfo: ...

  def __len__(self) -> int: ...

  def unigram(self) -> np.ndarray: ...

  def rows(self, start: int, stop: int) -> np.ndarray: ...

  def numbered(self, numbers: Sequence[int]) -> np.ndarray: ...


class PackedRecords:
  """The records of one split of a prepared directory.

  `manifest` describes the directory; a record shorter than `length` is padded on the right with `pad`.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    split: str = "train",
    length: int,
    seed: int,
    fraction: float = 1.0,
    content: manifest.Manifest | None = None,
  ):
    """Opens and checks the records.

    Args:
      directory: output of `data.prepare`.
      split: 'train' or 'heldout'.
      length: tokens in a row; at least the manifest's length.
      seed: decides the order in which `batch` takes the records.
      fraction: in (0, 1]; only this part of the records is used, from the first.
      content: the manifest of the directory if the caller has it; None: read it.

    DataError: the preparation is missing, unfinished or damaged, or its records do not fit. ConfigError:
    there is no such split.
    """
    self._directory = pathlib.Path(directory)
    self.manifest = content or manifest.read(directory)
    self.length = length
    self.pad = self.manifest.vocabulary.special_ids["pad"]
    if split not in self.manifest.splits:
      known = ", ".join(sorted(self.manifest.splits))
      raise errors.ConfigError(f"{directory}: there is no split {split!r}; its splits are {known}")
    self._split = self.manifest.splits[split]
    self._check_fit(split)
    self._check_files()
    self._dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
    import grain  # here, because it imports JAX and orbax: two seconds that `--help` does not need

    self._source = grain.sources.ArrayRecordDataSource(
      [str(self._directory / shard.name) for shard in self._split.shards]
    )
    if len(self._source) != self._split.records:
      raise self._damaged(
        f"{directory}: its {split} files hold {len(self._source)} records, the manifest says "
        f"{self._split.records}"
      )
    self._number = max(1, int(fraction * self._split.records))
    # Shuffling indices instead of records makes a batch one read, which is up to ten times faster.
    self._order = grain.MapDataset.range(self._number).shuffle(seed=seed % 2**32).repeat()

  @property
  def vocabulary(self) -> manifest.VocabularyInfo:
    """The vocabulary of the ids, as the manifest describes it."""
    return self.manifest.vocabulary

  def __len__(self) -> int:
    """Returns the number of records in an epoch."""
    return self._number

  def unigram(self) -> np.ndarray:
    """Returns the count of each id in the training records of the directory, [vocab] int64."""
    return unigram(self._directory)

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray:
    """Returns rows of the global batch of a step; `rows` are their numbers from 0, None is all.

    The result is [rows, length] int32, padded on the right with `pad`.
    """
    return self._read(self.examples(step, batch_size, rows=rows))

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]:
    """Returns the record number of each row of a `batch`, counted in the order of the files."""
    first = step * batch_size
    return [self._order[first + row] for row in (range(batch_size) if rows is None else rows)]

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns the records [start, stop) in the order of the files, for evaluation; fewer at the end.

    The result is [at most stop - start, length] int32, padded on the right with `pad`.
    """
    return self.numbered(range(start, stop))

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the records with these numbers, [records, length] int32; numbers past the end are skipped."""
    return self._read([number for number in numbers if number < self._number])

  def _read(self, indices: Sequence[int]) -> np.ndarray:
    try:
      return self._pad(self._source.__getitems__(indices) if indices else [])
    except (RuntimeError, ValueError, IndexError) as error:
      raise self._damaged(
        f"{self._directory}: a record cannot be read ({errors.reason(error)[:200]})"
      ) from error

  def _pad(self, records: Sequence[bytes]) -> np.ndarray:
    batch = np.full((len(records), self.length), self.pad, np.int32)
    for row, record in zip(batch, records):
      ids = np.frombuffer(record, self._dtype)
      row[: ids.size] = ids
    return batch

  def _damaged(self, problem: str) -> errors.DataError:
    return errors.DataError(f"{problem}; remove {self._directory} and prepare it again")

  def _check_fit(self, split: str) -> None:
    described = self.manifest
    if described.length > self.length:
      raise errors.DataError(
        f"{self._directory} has records of up to {described.length} tokens, data.length is {self.length}; "
        f"prepare it again with --length={self.length}, or:\n  --config.data.length={described.length}"
      )
    if not self._split.records:
      raise errors.DataError(
        f"{self._directory} has no {split} records; prepare it again from more text with --heldout_fraction "
        "above 0, or train without evaluation:\n  --config.train.eval_batches=0"
      )

  def _check_files(self) -> None:
    check_digests = sum(shard.bytes for shard in self._split.shards) <= DIGEST_CHECK_BYTES
    for shard in self._split.shards:
      path = self._directory / shard.name
      if not path.is_file():
        raise self._damaged(f"{path} is missing")
      size = path.stat().st_size
      if size != shard.bytes:
        raise self._damaged(f"{path} has {size} bytes, the manifest says {shard.bytes}")
      if check_digests and (digest := files.sha256(path)) != shard.sha256:
        raise self._damaged(
          f"{path} is damaged (sha256 {digest[:12]}, the manifest says {shard.sha256[:12]})"
        )
