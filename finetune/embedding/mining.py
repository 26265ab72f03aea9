"""Chooses hard negatives: the passages nearest to a query that are not its positives. Imports no jax."""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Collection

import numpy as np

from data import rows
from data.errors import DataError, listed
from data.rows import Row
from data.rows.read import TEXT
from data.rows.values import plain_text
from finetune.embedding import load, retrieval

NEGATIVES = "negatives"  # a column
POSITIVE_SCORE, NEGATIVE_SCORES = load.MINED


@dataclasses.dataclass(frozen=True)
class Rule:
  """Which of the passages nearest to a query become its negatives."""

  negatives: int  # most of a query
  skip: int  # nearest candidates that are left out
  margin: float  # a negative's cosine is at most the positive's minus this
  relative_margin: float  # and at most the positive's times this (NV-Retriever, arXiv 2407.15831, section 3)
  seed: int | None  # negatives are drawn from the candidates; None: the nearest

  def limit(self, positive: float) -> float:
    """Returns the highest cosine of a negative; passages above it may be unlabelled positives."""
    return positive - max(self.margin, (1 - self.relative_margin) * abs(positive))

  def choose(
    self, cosines: np.ndarray, numbers: np.ndarray, *, positive: float, known: Collection[int], row: int
  ) -> list[int]:
    """Returns the positions of the negatives in the results of one query, nearest first.

    Args:
      cosines: [depth] of the nearest passages, largest first.
      numbers: [depth], the passages' numbers.
      positive: cosine of the row's positive.
      known: numbers of passages that are no negatives.
      row: number of the row, by which the draw differs from those of other rows.
    """
    limit = self.limit(positive)
    left = [
      at
      for at, (cosine, number) in enumerate(zip(cosines.tolist(), numbers.tolist()))
      if cosine <= limit and cosine > -math.inf and number not in known
    ][self.skip :]
    if self.seed is None or len(left) <= self.negatives:
      return left[: self.negatives]
    drawn = np.random.default_rng([self.seed, row]).choice(len(left), self.negatives, replace=False)
    return [left[at] for at in sorted(drawn.tolist())]


class Passages:
  """The different texts of a corpus, numbered in the order of the file; they are compared as `plain_text`."""

  def __init__(self) -> None:
    self.texts: list[str] = []
    self.fresh: set[int] = set()  # numbers of the rows whose text is not that of an earlier row
    self._numbers: dict[str, int] = {}
    self._below_titles: dict[str, set[int]] = collections.defaultdict(set)  # by the text without its title

  def add(self, row: Row, text: str, without_title: str = "") -> None:
    """Adds the text of a row of the corpus, unless it is empty."""
    if not (key := plain_text(text)):
      return
    if key not in self._numbers:
      self._numbers[key] = len(self.texts)
      self.texts.append(text)
      self.fresh.add(row.number)
    if without_title:
      self._below_titles[plain_text(without_title)].add(self._numbers[key])

  def number(self, text: str) -> int | None:
    """Returns the number of a text; None if the corpus lacks it."""
    return self._numbers.get(plain_text(text))

  def numbers(self, text: str) -> set[int]:
    """Returns the numbers of the passages with a text, alone or below a title."""
    number = self.number(text)
    return self._below_titles.get(plain_text(text), set()) | ({number} if number is not None else set())


class Pairs:
  """The queries of a file of pairs, and the passages that are no negatives of each."""

  def __init__(self, path: str, *, text: str = "", text_pair: str = "") -> None:
    """Finds the columns of query (`text`) and positive (`text_pair`) as the embedding stage does.

    Raises:
      ConfigError: the file lacks a column that is named.
      DataError: no column is known to be the query or the positive, or pairs have scores.
    """
    there = rows.columns(path)
    chosen = load.find(path, there, text=text, text_pair=text_pair, flag="--")
    if not chosen.second:
      raise DataError(
        f"{path}: no column of {listed(there)} is known to be the positive; name both:\n"
        "  --text=NAME --text_pair=NAME"
      )
    if chosen.score:
      raise DataError(
        f"{path}: {chosen.score!r} seems to tell positives from other pairs; keep the rows of positives, "
        "without this column"
      )
    self.query, self.positive = chosen.first, chosen.second
    self._positives: dict[str, set[str]] = collections.defaultdict(set)

  def add(self, row: Row) -> None:
    """Adds a row; DataError: one of its texts is none."""
    self._positives[plain_text(row.text(self.query))].add(self.passage(row))

  def passage(self, row: Row) -> str:
    """Returns the positive of a row."""
    return row.text(self.positive)

  def known(self, query: str, passages: Passages) -> set[int]:
    """Returns the numbers of all positives of a query, and of a passage with the query's own text."""
    return set().union(*map(passages.numbers, (query, *self._positives[plain_text(query)])))


def corpus_text(path: str, positive: str):
  """Returns the function that makes the passage of a row of a corpus: the text of its column.

  The column is 'text', with the title before it as in BEIR, or that of the `positive`, or the only one.
  DataError: none of them exists.
  """
  there = rows.columns(path)
  if TEXT in there:
    return retrieval.passage
  column = positive if positive in there else there[0]
  if column not in (positive, *there[: len(there) == 1]):
    raise DataError(
      f"{path}: no column {TEXT!r} or {positive!r}, only {listed(there)}; rename that of the passages"
    )
  return lambda row: row.text(column)


def described(output: pathlib.Path, rule: Rule) -> str:
  """Returns a summary of a finished output: rows with fewer negatives, mean cosines."""
  count, fewer, positives, negatives = 0, 0, 0.0, []
  for row in rows.read(str(output)):
    count, positives = count + 1, positives + row.fields[POSITIVE_SCORE]
    fewer += len(row.fields[NEGATIVES]) < rule.negatives
    negatives += row.fields[NEGATIVE_SCORES]
  mean = f"{np.mean(negatives):.3f}" if negatives else "none"
  return (
    f"{len(negatives):,} negatives; rows with fewer than {rule.negatives}: {fewer:,} of {count:,}; mean "
    f"cosine of positives {positives / count:.3f}, of negatives {mean}"
  )
