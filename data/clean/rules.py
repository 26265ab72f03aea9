"""Rules about single documents: length, number of words, symbols, stop words, repetition, language.

The limits of `symbols`, `stop_words`, `words` and `repetition` are those of MassiveText: Rae et al. 2021,
"Scaling Language Models: Methods, Analysis & Insights from Training Gopher" (arXiv 2112.11446), appendix
A.1.1, "Quality Filtering" and Table A1, "Repetition Removal". A line is a paragraph here, so the table's two
rules about paragraphs are those about lines. `language` keeps documents in languages that CLD2 detects.
"""

import collections
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data import errors

# Tibetan, Thai, Lao, Burmese, Khmer, kana and Chinese characters.
_UNSPACED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNSPACED += "\U00020000-\U0003ffff"
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Words(NamedTuple):
  """The tokens of a document: words between spaces, or single characters in scripts without spaces.

  `width` is the number of tokens that count as a word: 2 if most are single characters, else 1.
  """

  tokens: Sequence[str]
  width: int

  @property
  def number(self) -> int:
    """The number of words."""
    return len(self.tokens) // self.width


def words_of(document: Sequence[str]) -> Words:
  """Returns the words of a document's paragraphs."""
  text = "\n".join(document)
  if text.isascii() or not _IS_UNSPACED.search(text):
    return Words(text.split(), 1)
  tokens = _TOKEN.findall(text)
  unspaced = sum(map(bool, map(_IS_UNSPACED.match, tokens)))
  return Words(tokens, 2 if 2 * unspaced > len(tokens) else 1)


MEAN_WORD_LENGTH = (3, 10)  # characters
MOST_SYMBOLS = 0.1  # hash signs, or ellipses, for each word
MOST_BULLETS = 0.9  # of lines that begin with a bullet
MOST_ELLIPSES = 0.3  # of lines that end in an ellipsis
LEAST_ALPHABETIC = 0.8  # of words with a letter in them
STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
LEAST_STOP_WORDS = 2  # different ones

_BULLETS = ("\u2022", "\u2023", "\u25cf", "\u25e6", "\u2043", "*", "-")
_ELLIPSES = ("...", "\u2026")


def length(document: list[str], *, least: int, most: float) -> list[str] | str:
  """Drops a document with fewer than `least` or more than `most` characters, not counting line ends."""
  return _within(document, sum(map(len, document)), "character", least, most)


def word_number(document: list[str], *, least: int, most: float) -> list[str] | str:
  """Drops a document with fewer than `least` or more than `most` words."""
  return _within(document, words_of(document).number, "word", least, most)


def _within(document: list[str], size: int, unit: str, least: int, most: float) -> list[str] | str:
  limit = f"fewer than {least:,}" if size < least else f"more than {most:,}" if size > most else ""
  return f"{errors.counted(size, unit)}, {limit}" if limit else document


SIZES = {"length": length, "words": word_number}


def symbols(document: list[str]) -> list[str] | str:
  """Drops a document with too many hash signs, ellipses, bullets, or words without a letter.

  A mean word length outside `MEAN_WORD_LENGTH` also drops it, except in scripts without spaces.
  """
  tokens, width = words_of(document)
  number = max(1, len(tokens) // width)
  text = "\n".join(document)
  for name, signs in (("hash signs", ("#",)), ("ellipses", _ELLIPSES)):
    ratio = sum(map(text.count, signs)) / number
    if ratio > MOST_SYMBOLS:
      return f"{ratio:.2f} {name} a word, more than {MOST_SYMBOLS}"
  lines = max(1, len(document))
  for name, most, count in (
    ("begin with a bullet", MOST_BULLETS, sum(line.startswith(_BULLETS) for line in document)),
    ("end in an ellipsis", MOST_ELLIPSES, sum(line.endswith(_ELLIPSES) for line in document)),
  ):
    if count / lines > most:
      return f"{count / lines:.0%} of lines {name}, more than {most:.0%}"
  alphabetic = sum(_has_letter(token) for token in tokens) / max(1, len(tokens))
  if alphabetic < LEAST_ALPHABETIC:
    return f"{alphabetic:.0%} of words have a letter, fewer than {LEAST_ALPHABETIC:.0%}"
  mean, (shortest, longest) = sum(map(len, tokens)) / max(1, len(tokens)), MEAN_WORD_LENGTH
  if width == 1 and not shortest <= mean <= longest:
    return f"words of {mean:.1f} characters on average, outside {shortest} to {longest}"
  return document


def _has_letter(token: str) -> bool:
  return token.isalpha() or any(map(str.isalpha, token))


def stop_words(document: Sequence[str]) -> Sequence[str] | str:
  """Drops a document with fewer than two different of eight common English words."""
  number = len(STOP_WORDS & set("\n".join(document).lower().split()))
  return document if number >= LEAST_STOP_WORDS else f"{number} of {len(STOP_WORDS)} stop words, fewer than 2"


MOST_DUPLICATE_LINES = 0.30  # of lines
MOST_CHARACTERS_OF_LINES = 0.20  # in duplicate lines
MOST_IN_TOP = {2: 0.20, 3: 0.18, 4: 0.16}  # words of the most frequent n-gram: of characters
# Words of n-grams that occur more than once: of characters in any of them.
MOST_IN_DUPLICATES = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def repetition(document: list[str]) -> list[str] | str:
  """Drops a document with too many repeated lines or n-grams of words."""
  return _lines(document) or _n_grams(words_of(document)) or document


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


def _n_grams(found: Words) -> str:
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


MOST_CHARACTERS = 10_000  # at the start of a document, from which the language is detected
# Current codes of languages for which CLD2 uses an older code.
_OLDER = {"he": "iw", "jv": "jw", "nb": "no"}
_CURRENT = {"iw": "he", "jw": "jv"}  # shown for the older ones; 'no' stays, it is not only Bokmål
_SEPARATOR = "+"
# CLD2 rejects text with these characters: controls, lone surrogates, and noncharacters of Unicode.
_REFUSED = re.compile(
  "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
  + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
  + "]"
)


def codes(listed: str) -> frozenset[str]:
  """Returns CLD2's codes of languages written 'en+de'; ConfigError if one is unknown."""
  import pycld2  # here: an optional package

  by_name = dict(pycld2.LANGUAGES)
  known = sorted(by_name[name] for name in pycld2.DETECTED_LANGUAGES)
  wanted = listed.split(_SEPARATOR)
  for code in wanted:
    if _OLDER.get(code, code) not in known:
      hint = errors.did_you_mean(code, known, most=1) or ";"
      raise errors.ConfigError(
        f"--clean=language:{listed}: unknown language {code!r}{hint} known: "
        f"{errors.listed([*known, *_OLDER], most=200)}"
      )
  return frozenset(_OLDER.get(code, code) for code in wanted)


def language(document: list[str], *, wanted: frozenset[str]) -> list[str] | str:
  """Drops a document whose language is not one of the codes `wanted`, or is not detected."""
  code = detected("\n".join(document))
  if not code:
    return "language not detected"
  return document if code in wanted else f"language {_CURRENT.get(code, code)}"


def detected(text: str) -> str:
  """Returns CLD2's code of the main language of a text, '' if it detects none.

  CLD2's flag `isReliable` is ignored, because it is too strict for technical text. Of Russian man pages,
  which have English names of options, CLD2 detects all but one as Russian, but calls only 15 % reliable.
  """
  import pycld2

  _, _, found = pycld2.detect(_REFUSED.sub(" ", text[:MOST_CHARACTERS]), isPlainText=True)
  return "" if found[0][1] == "un" else found[0][1]
