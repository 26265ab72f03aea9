"""Rules about single documents: length, number of words, symbols, stop words.

The limits of `symbols`, `stop_words` and `words` are those of MassiveText: Rae et al. 2021, "Scaling Language
Models: Methods, Analysis & Insights from Training Gopher" (arXiv 2112.11446), appendix A.1.1, "Quality
Filtering".
"""

from collections.abc import Sequence

from data.clean import words
from data.errors import counted

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
  return _within(document, words.of(document).number, "word", least, most)


def _within(document: list[str], size: int, unit: str, least: int, most: float) -> list[str] | str:
  limit = f"fewer than {least:,}" if size < least else f"more than {most:,}" if size > most else ""
  return f"{counted(size, unit)}, {limit}" if limit else document


SIZES = {"length": length, "words": word_number}


def symbols(document: list[str]) -> list[str] | str:
  """Drops a document with too many hash signs, ellipses, bullets, or words without a letter.

  A mean word length outside `MEAN_WORD_LENGTH` also drops it, except in scripts without spaces.
  """
  tokens, width = words.of(document)
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
