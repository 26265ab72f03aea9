"""The tokeniser of the official COCO-LM and AMOS code: words set apart in Python, then sentencepiece.

A vocabulary with `pretokenization: official` encodes with it, so an imported official model sees the ids it
was trained on. Every rule is of `huggingface/cocolm/tokenization_cocolm.py` in the COCO-LM repository
(fairseq's `sentencepiece_bpe.py` there is the same), and is kept as it is, oddities too.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

# Curly quotes, the acute accent, and the long dashes.
_TYPEWRITER = str.maketrans("‘’´“”—–", "'''\"\"--")
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# A clitic that the split took off its apostrophe; those in capitals set the next word apart as well.
_CLITICS = (
  (re.compile(r"' ([smdSMDtT])\b"), r"'\1"),
  (re.compile(r"' (ll|re|ve)\b"), r"'\1"),
  (re.compile(r"' (LL|RE|VE)\b"), r"'\1 "),
)
_SPACE = "▁"
_APOSTROPHES = tuple("'‘’´")  # the last three become the first


def is_punctuation(character: str) -> bool:
  """Whether one character is ASCII punctuation or of a Unicode category P."""
  return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def pretokenize(text: str) -> list[str]:
  """Returns the words of a text, the punctuation around each a word of its own; what is inside one stays."""
  text = text.strip().replace("``", '"').replace("''", '"').translate(_TYPEWRITER)
  line = " ".join(part for word in text.split() for part in _peel(word))
  for pattern, joined in _CLITICS:
    line = pattern.sub(joined, line)
  return line.split()


def touches_others(word: str) -> bool:
  """Tells whether the words beside a word between spaces may change its pieces, or it theirs.

  An apostrophe at its end takes a clitic that stands alone after it; a mark of a space at its end is lost.
  """
  return _SPACE in word or word.rstrip().endswith(_APOSTROPHES)


def _peel(word: str) -> list[str]:
  """Splits a word into its leading run of punctuation, its middle, and its trailing run."""
  first = next((i for i, character in enumerate(word) if not is_punctuation(character)), None)
  if first is None:
    return [word]
  last = next(i for i in range(len(word), 0, -1) if not is_punctuation(word[i - 1]))
  return [part for part in (word[:first], word[first:last], word[last:]) if part]


def drop_lone_spaces(pieces: Sequence[str]) -> list[str]:
  """Leaves out pieces that are a space alone, where last or before a piece that begins with punctuation."""
  return [
    piece
    for i, piece in enumerate(pieces)
    if piece != _SPACE or (i + 1 < len(pieces) and not is_punctuation(pieces[i + 1][0]))
  ]


def tokenize_batch(processor, texts: Sequence[str]) -> list[list[str]]:
  """Returns the pieces of each text by a `SentencePieceProcessor`; an empty text has none.

  A run of characters unknown to the model is one piece, spelled as in the text.
  """
  lines = [" ".join(pretokenize(text)) for text in texts]
  return [drop_lone_spaces(pieces) for pieces in processor.encode(lines, out_type=str, num_threads=1)]


def encoder(processor, ids: dict[str, int], *, unknown: int) -> Callable[[Sequence[str]], list[list[int]]]:
  """Returns texts -> ids by a `SentencePieceProcessor`; a piece that `ids` lacks becomes `unknown`.

  `ids` leaves out the pieces that text must not give. (The official code looks them up too, but its split of
  words leaves no text that spells one, unless the model lacks letters of it.)
  """

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    return [[ids.get(piece, unknown) for piece in pieces] for pieces in tokenize_batch(processor, texts)]

  return encode_batch


def join(pieces: Sequence[str]) -> str:
  """Returns readable text of pieces: spaces inside them removed, '▁' is a space."""
  return "".join(pieces).replace(" ", "").replace(_SPACE, " ").strip()


def truncate_pair(first: Sequence[int], second: Sequence[int], budget: int) -> tuple[list[int], list[int]]:
  """Cuts the ends of two sequences to `budget` ids in all: the longer by one, the second where equal."""
  lengths = [len(first), len(second)]
  while sum(lengths) > max(budget, 0):
    lengths[0 if lengths[0] > lengths[1] else 1] -= 1
  return list(first[: lengths[0]]), list(second[: lengths[1]])
