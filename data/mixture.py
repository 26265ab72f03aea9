"""Mixes the rows of several prepared corpora at exact rates, by integer arithmetic.

Nothing is random and no state is kept between positions, so any host finds the source of any position.
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
  """Assigns a source to every position, so that each source is read at its rate.

  Each source's indices are 0, 1, 2, ... without a gap, also across stages. In the first n positions the
  number of a source's rows differs from n * rate by less than max(1, sources - 1). A later stage changes no
  earlier position.
  """

  def __init__(self, stages: Sequence[Stage]) -> None:
    """Precomputes, per source and stage, the linear function from positions to the source's rows.

    `stages` begin at position 0 and ascend; each has a rate for every source, and at least one is above 0.
    """
    # Source j gets ceil(E_j) of the m positions that the sources before it leave. E_j is a function of m, not
    # of the position: then the lines of all levels are continuous over stages, and rounding errors do not
    # add up.
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
    """Returns (source, index of the row in that source, from 0) of a position."""
    for source in range(len(self._levels)):
      before = self._taken(source, position)
      if self._taken(source, position + 1) > before:
        return source, before
      position -= before
    return len(self._levels), position

  def counts(self, positions: int) -> list[int]:
    """Returns the number of rows of each source among the first `positions`."""
    taken = []
    for source in range(len(self._levels)):
      taken.append(self._taken(source, positions))
      positions -= taken[-1]
    return [*taken, positions]

  def _taken(self, source: int, positions: int) -> int:
    """Returns how many of `positions`, those that earlier sources leave, belong to this source."""
    firsts, lines = self._levels[source]
    slope, offset, scale = lines[bisect.bisect_right(firsts, positions) - 1]
    return -(-(slope * positions + offset) // scale)


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
    self._firsts = [sum(sizes[:at]) for at in range(len(sizes))]
    first = self._all[0]
    self.manifest: Manifest = first.manifest
    self.vocabulary = first.vocabulary
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
    examples = np.zeros(len(places), np.int64)
    for source, at in self._by_source(source for source, _ in places):
      indices = [places[row][1] for row in at]
      examples[at] = self._firsts[source] + np.asarray(self._all[source].examples(0, 0, rows=indices))
    return examples.tolist()

  def rows(self, start: int, stop: int) -> np.ndarray:
    """Returns the rows [start, stop) of the mixture, for evaluation; none past `len`.

    The result is [at most stop - start, length] int32; each source is read in the order of its files.
    """
    places = [self._mixture[position] for position in range(start, min(stop, self._number))]
    return self.numbered([self._firsts[source] + index for source, index in places])

  def numbered(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the records with these numbers, [records, length] int32."""
    read = np.full((len(numbers), self.length), self.pad, np.int32)
    owners = [bisect.bisect_right(self._firsts, number) - 1 for number in numbers]
    for source, at in self._by_source(owners):
      local = [numbers[row] - self._firsts[source] for row in at]
      read[at] = self._all[source].numbered(local)
    return read

  def _by_source(self, owners: Iterable[int]) -> list[tuple[int, np.ndarray]]:
    """Returns (source, its indices in `owners`) for each source that occurs in `owners`."""
    owners = np.fromiter(owners, np.int64)
    return [(int(source), np.flatnonzero(owners == source)) for source in np.unique(owners)]
