"""The step `repetition`: drops documents that repeat too many lines or n-grams of words.

The limits are Table A1 of Rae et al. 2021 (arXiv 2112.11446), appendix A.1.1, "Repetition Removal". A line is
a paragraph here, so the table's two rules about paragraphs are those about lines.
"""

import collections

import numpy as np

from data.clean import words

MOST_DUPLICATE_LINES = 0.30  # of lines
MOST_CHARACTERS_OF_LINES = 0.20  # in duplicate lines
MOST_IN_TOP = {2: 0.20, 3: 0.18, 4: 0.16}  # words of the most frequent n-gram: of characters
# Words of n-grams that occur more than once: of characters in any of them.
MOST_IN_DUPLICATES = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def repetition(document: list[str]) -> list[str] | str:
  """Drops a document with too many repeated lines or n-grams of words."""
  return _lines(document) or _n_grams(words.of(document)) or document


def _lines(document: list[str]) -> str:
  again = collections.Counter(document)
  again.subtract(again.keys())
  lines = again.total() / max(1, len(document))
  if lines > MOST_DUPLICATE_LINES:
    return f"{lines:.0%} of lines are duplicates, more than {MOST_DUPLICATE_LINES:.0%}"
  characters = sum(len(line) * count for line, count in again.items()) / max(1, sum(map(len, document)))
  if characters > MOST_CHARACTERS_OF_LINES:
    return f"{characters:.0%} of characters in duplicate lines, more than {MOST_CHARACTERS_OF_LINES:.0%}"
  return ""


def _n_grams(found: words.Words) -> str:
  """Returns the reason to drop a document for repeated n-grams, '' if there is none.

  An n-gram can repeat only where both its (n-1)-grams repeat, so each round checks fewer places.
  """
  numbers: dict[str, int] = {}
  ids = np.asarray([numbers.setdefault(token, len(numbers)) for token in found.tokens], np.int64)
  lengths = np.fromiter(map(len, found.tokens), np.int64, ids.size)
  before = np.append(0, np.cumsum(lengths))  # characters before each token
  kind = ids  # of the n-gram that begins at a token; -1: it occurs once
  for n in range(2, max(MOST_IN_DUPLICATES) * found.width + 1):
    starts = np.flatnonzero((kind[:-1] >= 0) & (kind[1:] >= 0))
    starts = starts[starts + n <= ids.size]
    pairs = kind[starts] * len(numbers) + ids[starts + n - 1]
    _, kinds, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    is_again = counts[kinds] > 1
    starts, kinds = starts[is_again], kinds[is_again]
    if not starts.size:
      return ""
    kind = np.full(ids.size, -1)
    kind[starts] = kinds
    number = n // found.width if n % found.width == 0 else 0  # words of the n-gram
    if number in MOST_IN_TOP:
      sizes = (before[starts + n] - before[starts]) * (counts[kinds] == counts.max())
      covered = _covered(lengths, starts[kinds == kinds[sizes.argmax()]], n)  # of equals the longest
      name, most = f"the most frequent {number}-gram", MOST_IN_TOP[number]
    elif number in MOST_IN_DUPLICATES:
      covered = _covered(lengths, starts, n)
      name, most = f"duplicate {number}-grams", MOST_IN_DUPLICATES[number]
    else:
      continue
    if covered > most:
      return f"{covered:.0%} of characters in {name}, more than {most:.0%}"
  return ""


def _covered(lengths: np.ndarray, starts: np.ndarray, n: int) -> float:
  """Returns the fraction of characters inside n-grams that begin at `starts`; overlaps count once."""
  change = np.zeros(lengths.size + 1, np.int64)
  change[starts] += 1
  change[starts + n] -= 1
  return lengths[np.cumsum(change[:-1]) > 0].sum() / lengths.sum()
