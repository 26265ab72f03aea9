"""Rows of several prepared corpora at exact rates: the source of a position, by integer arithmetic.

Nothing is drawn at random and nothing is kept between positions: any host finds any position at once.
"""

import bisect
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from data.manifest import Manifest
from data.records import PackedRecords

Stage = tuple[int, Sequence[Fraction | int]]  # first position, rates in any scale; 0: not in this stage


class Mixture:
  """Gives the source of every position, so that every source is taken at its rate.

  Each source's indices are 0, 1, 2, ... without a gap, through stages too. Of n positions in a row from 0, a
  source's number differs from its rate's by less than max(1, sources - 1). A later stage changes nothing
  before it.
  """

  def __init__(self, stages: Sequence[Stage]) -> None:
    """Prepares the lines of every source.

    `stages` begin at 0 and ascend; all have a rate for each of the same sources, not all of them 0.
    """
    # Source j takes ceil(E_j) of the m positions that the sources before it leave over. E_j is a function of
    # m, not of the position: the sum of what the later sources are due is m exactly when E_j is. So the line
    # of each level is continuous over stages, and its rounding does not add up.
    rates = [[Fraction(rate) for rate in of_stage] for _, of_stage in stages]
    times = [Fraction(first) for first, _ in stages]
    self._levels: list[tuple[list[int], list[tuple[int, int, int]]]] = []
    for source in range(len(rates[0]) - 1):
      due, share, lines, left = Fraction(0), Fraction(0), [], []
      for number, of_stage in enumerate(rates):
        if number:
          due += (times[number] - times[number - 1]) * share
        left.append(times[number] - due)
        rest = sum(of_stage[source:])
        share = of_stage[source] / rest if rest else Fraction(0)
        offset = due - times[number] * share
        scale = math.lcm(share.denominator, offset.denominator)
        lines.append((int(share * scale), int(offset * scale), scale))
      self._levels.append(([math.ceil(time) for time in times], lines))
      times = left

  def __getitem__(self, position: int) -> tuple[int, int]:
    """Returns the source of a position, and which of that source's rows it is, from 0."""
    for source in range(len(self._levels)):
      before = self._taken(source, position)
      if self._taken(source, position + 1) > before:
        return source, before
      position -= before
    return len(self._levels), position

  def counts(self, positions: int) -> list[int]:
    """Returns how many of the first so many positions each source has."""
    taken = []
    for source in range(len(self._levels)):
      taken.append(self._taken(source, positions))
      positions -= taken[-1]
    return [*taken, positions]

  def _taken(self, source: int, positions: int) -> int:
    """Returns how many of so many positions that the sources before leave over are this source's."""
    firsts, lines = self._levels[source]
    slope, offset, scale = lines[bisect.bisect_right(firsts, positions) - 1]
    return -(-(slope * positions + offset) // scale)


def source_seed(seed: int, name: str) -> int:
  """Returns the seed of the order of a source: of another name, another order."""
  # The reader shuffles epoch n with the seed + n: neighbouring seeds would repeat each other's epochs.
  return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest(), "big")


class MixedRecords:
  """The records of several sources as one, with the interface of `PackedRecords`."""

  def __init__(
    self, sources: Mapping[str, PackedRecords], mixture: Mixture, *, shares: Sequence[Fraction]
  ) -> None:
    """Takes the opened sources by name, in the order of the mixture, all of one vocabulary and length.

    `shares` are the fractions of the whole run's rows that are of each source; they add up to 1.
    """
    self.sources = dict(sources)
    self.shares = dict(zip(sources, shares, strict=True))
    self._all, self._mixture = list(sources.values()), mixture
    sizes = [len(records) for records in self._all]
    self._firsts = [sum(sizes[:at]) for at in range(len(sizes))]
    first = self._all[0]
    self.manifest: Manifest = first.manifest
    self.vocabulary = first.vocabulary
    self.length, self.pad = first.length, first.pad
    # Counts of a longer prefix are never smaller, so the first prefix that is too long can be searched.
    self._number = bisect.bisect_left(
      range(sum(sizes)),
      True,
      key=lambda at: any(taken > size for taken, size in zip(mixture.counts(at + 1), sizes)),
    )

  def __len__(self) -> int:
    """Returns the number of rows until the first source would begin again."""
    return self._number

  def unigram(self) -> np.ndarray:
    """Returns the count of each id in the training records, each source at its share: [vocab] float64."""
    counts = [records.unigram() for records in self._all]
    parts = [float(share) * one / one.sum() for share, one in zip(self.shares.values(), counts)]
    return np.sum(parts, axis=0) * sum(int(one.sum()) for one in counts)

  def batch(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> np.ndarray:
    """Returns the rows of the global batch of a step, as `PackedRecords.batch`."""
    return self.numbered(self.examples(step, batch_size, rows=rows))

  def examples(self, step: int, batch_size: int, *, rows: Sequence[int] | None = None) -> list[int]:
    """Returns which records the rows of a `batch` are: their numbers, one source's after another's."""
    first = step * batch_size
    places = [self._mixture[first + row] for row in (range(batch_size) if rows is None else rows)]
    examples = np.zeros(len(places), np.int64)
    for source, at in self._by_source(source for source, _ in places):
      indices = [places[row][1] for row in at]
      examples[at] = self._firsts[source] + np.asarray(self._all[source].examples(0, 0, rows=indices))
    return examples.tolist()

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns rows [start, stop) of the mixture for evaluation, no more than `len`.

    Every source's records are taken in the order of its files. They are [at most stop - start, length] int32.
    """
    places = [self._mixture[position] for position in range(start, min(stop, self._number))]
    return self.numbered([self._firsts[source] + index for source, index in places])

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the records with these numbers of `examples`, [rows, length] int32."""
    read = np.full((len(numbers), self.length), self.pad, np.int32)
    owners = [bisect.bisect_right(self._firsts, number) - 1 for number in numbers]
    for source, at in self._by_source(owners):
      local = [numbers[row] - self._firsts[source] for row in at]
      read[at] = self._all[source].numbered(local)
    return read

  def _by_source(self, owners: Iterable[int]) -> list[tuple[int, np.ndarray]]:
    """Returns the places at which each source stands among `owners`, for those that stand there."""
    owners = np.fromiter(owners, np.int64)
    return [(int(source), np.flatnonzero(owners == source)) for source in np.unique(owners)]
