"""Reads packed records, or a mixture of them: the rows of any step are found by arithmetic.

The order depends only on (seed, epoch, position), where position = step * batch size + row. So any number of
hosts reads the same global batches, and step 1,000,000 is found as fast as step 0. Rates of a mixture are
exact, by integers: `grain.MapDataset.mix` rounds them to hundredths of the smallest (0.7 and 0.3 to 0.6997).
"""

import bisect
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
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

  def sample(self, indices: Sequence[int]) -> np.ndarray: ...


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
      fraction: in (0, 1]; only this part of the records is used, drawn once for all seeds.
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
    # Records are stored in the order of their text, and indices are shuffled: no sort on disk is needed. A
    # fraction, and what is evaluated, are the first records of one fixed order.
    in_files = grain.MapDataset.range(self._split.records)
    self._fixed = in_files.shuffle(seed=0)
    used = in_files if fraction == 1 else self._fixed[: self._number]
    self._order = used.shuffle(seed=seed % 2**32).repeat()

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
    """Returns the rows [start, stop) of `sample`."""
    return self.sample(range(start, stop))

  def sample(self, indices: Sequence[int]) -> np.ndarray:
    """Returns records of an order that is the same for all seeds, for evaluation; none past `len`.

    The result is [at most the number of indices, length] int32, padded on the right with `pad`.
    """
    return self._read([self._fixed[index] for index in indices if index < self._number])

  @property
  def total(self) -> int:
    """The number of records in the files, whatever fraction of them is used."""
    return self._split.records

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the records with these numbers, [records, length] int32; numbers past the end are skipped."""
    return self._read([number for number in numbers if number < self.total])

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


class Mixture:
  """Assigns a source to every position, so that each source is read at its rate.

  Each source's indices are 0, 1, 2, ... without a gap, also across stages. In the first n positions of a
  stage the number of a source's rows differs from n * rate by less than max(1, sources - 1). A later stage
  changes no earlier position.
  """

  def __init__(self, stages: Sequence[tuple[int, Sequence[Fraction | int]]]) -> None:
    """Makes a mixture of stages: (first position, the sources' rates in any scale; 0: not in this stage).

    The stages begin at position 0 and ascend; in each at least one rate is above 0.
    """
    self._firsts = [first for first, _ in stages]
    self._rates, self._before = [], [[0] * len(stages[0][1])]
    for first, rates in stages:
      scale = math.lcm(*(Fraction(rate).denominator for rate in rates))
      if first:
        self._before.append(self.counts(first))
      self._rates.append([int(rate * scale) for rate in rates])

  def __getitem__(self, position: int) -> tuple[int, int]:
    """Returns (source, index of the row in that source, from 0) of a position."""
    before, after = self.counts(position), self.counts(position + 1)
    source = next(at for at, count in enumerate(before) if after[at] > count)
    return source, before[source]

  def counts(self, positions: int) -> list[int]:
    """Returns the number of rows of each source among the first `positions`."""
    stage = bisect.bisect_right(self._firsts[: len(self._rates)], positions) - 1
    rates, left = self._rates[stage], positions - self._firsts[stage]
    # Each source rounds up its part of what the sources before it leave, so every position is one row.
    counts, of = [], sum(rates)
    for rate, before in zip(rates, self._before[stage]):
      taken = -(-left * rate // of) if of else 0
      counts.append(before + taken)
      left, of = left - taken, of - rate
    return counts


def source_seed(seed: int, name: str) -> int:
  """Returns the seed that shuffles a source: a hash of the run's `seed` and the source's name."""
  # The reader shuffles epoch n with seed + n, so sources with neighbouring seeds would share orders.
  return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest(), "big")


class MixedRecords:
  """Several sources of records mixed into one, with the interface of `PackedRecords`."""

  def __init__(
    self, sources: Mapping[str, PackedRecords], mixture: Mixture, *, shares: Sequence[Fraction]
  ) -> None:
    """Combines opened sources, in the order of the mixture; all have one vocabulary and length.

    `shares` are the sources' fractions of all rows of the run; they add up to 1.
    """
    self.sources = dict(sources)
    self.shares = dict(zip(sources, shares, strict=True))
    self._all, self._mixture = list(sources.values()), mixture
    sizes = [len(records) for records in self._all]
    self._firsts = [sum(records.total for records in self._all[:at]) for at in range(len(sizes))]
    first = self._all[0]
    self.manifest, self.vocabulary = first.manifest, first.vocabulary
    self.length, self.pad = first.length, first.pad
    # Counts never fall as the prefix grows, so bisection finds the first prefix that is too long.
    self._number = bisect.bisect_left(
      range(sum(sizes)),
      True,
      key=lambda at: any(taken > size for taken, size in zip(mixture.counts(at + 1), sizes)),
    )

  def __len__(self) -> int:
    """Returns the number of rows before the first source is exhausted."""
    return self._number

  def unigram(self) -> np.ndarray:
    """Returns the count of each id, weighted by the sources' shares: [vocab] float64."""
    counts = [records.unigram() for records in self._all]
    parts = [float(share) * one / one.sum() for share, one in zip(self.shares.values(), counts)]
    return np.sum(parts, axis=0) * sum(int(one.sum()) for one in counts)

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray:
    """Returns rows of the global batch of a step, as `PackedRecords.batch` does."""
    return self.numbered(self.examples(step, batch_size, rows=rows))

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]:
    """Returns the record number of each row of a `batch`; numbers count through the sources in turn."""
    first = step * batch_size
    places = [self._mixture[first + row] for row in (range(batch_size) if rows is None else rows)]
    return [self._firsts[at] + self._all[at].examples(0, 0, rows=[index])[0] for at, index in places]

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns the rows [start, stop) of `sample`."""
    return self.sample(range(start, stop))

  def sample(self, indices: Sequence[int]) -> np.ndarray:
    """Returns rows of the mixture, for evaluation; none past `len`.

    The result is [at most the number of indices, length] int32; each source is read as its own `sample`.
    """
    places = [self._mixture[index] for index in indices if index < self._number]
    return self._gathered(places, PackedRecords.sample)

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the records with these numbers, [records, length] int32."""
    owners = [bisect.bisect_right(self._firsts, number) - 1 for number in numbers]
    places = [(at, number - self._firsts[at]) for at, number in zip(owners, numbers)]
    return self._gathered(places, PackedRecords.numbered)

  def _gathered(
    self, places: Sequence[tuple[int, int]], read: Callable[[PackedRecords, Sequence[int]], np.ndarray]
  ) -> np.ndarray:
    """Returns a row for each (source, index), read together from each source."""
    rows = np.full((len(places), self.length), self.pad, np.int32)
    for source in {source for source, _ in places}:
      at = [row for row, place in enumerate(places) if place[0] == source]
      rows[at] = read(self._all[source], [places[row][1] for row in at])
    return rows
