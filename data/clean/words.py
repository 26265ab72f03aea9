"""Splits documents into words, also in scripts without spaces between words."""

import re
from collections.abc import Sequence
from typing import NamedTuple

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


def of(document: Sequence[str]) -> Words:
  """Returns the words of a document's paragraphs."""
  text = "\n".join(document)
  if text.isascii() or not _IS_UNSPACED.search(text):
    return Words(text.split(), 1)
  tokens = _TOKEN.findall(text)
  unspaced = sum(map(bool, map(_IS_UNSPACED.match, tokens)))
  return Words(tokens, 2 if 2 * unspaced > len(tokens) else 1)
