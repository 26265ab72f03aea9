"""The tokeniser of the official COCO-LM and AMOS code: it splits words in Python, then uses sentencepiece.

A vocabulary with `pretokenization: official` uses it, so that an imported official model gets the ids of its
training. All rules, oddities included, are those of `huggingface/cocolm/tokenization_cocolm.py` in the
COCO-LM repository (fairseq's `sentencepiece_bpe.py` there has the same).
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

# Curly quotes, the acute accent, and the long dashes.
_TYPEWRITER = str.maketrans("‘’´“”—–", "'''\"\"--")
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# Joins a clitic to the apostrophe from which the split separated it; after capitals a space is added.
_CLITICS = (
  (re.compile(r"' ([smdSMDtT])\b"), r"'\1"),
  (re.compile(r"' (ll|re|ve)\b"), r"'\1"),
  (re.compile(r"' (LL|RE|VE)\b"), r"'\1 "),
)
_SPACE = "▁"
_APOSTROPHES = tuple("'‘’´")  # the last three become the first


def is_punctuation(character: str) -> bool:
  """Returns whether one character is ASCII punctuation or has a Unicode category P*."""
  return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def pretokenize(text: str) -> list[str]:
  """Returns the words of a text; punctuation at the ends of a word is separated, inside it stays."""
  text = text.strip().replace("``", '"').replace("''", '"').translate(_TYPEWRITER)
  line = " ".join(part for word in text.split() for part in _peel(word))
  for pattern, joined in _CLITICS:
    line = pattern.sub(joined, line)
  return line.split()


def touches_others(word: str) -> bool:
  """Returns whether a word may change the pieces of neighbouring words, or they its pieces.

  A final apostrophe is joined to a following clitic, and a final '▁' is dropped.
  """
  return _SPACE in word or word.rstrip().endswith(_APOSTROPHES)


def _peel(word: str) -> list[str]:
  """Returns the leading punctuation of a word, its middle, and its trailing punctuation."""
  first = next((i for i, character in enumerate(word) if not is_punctuation(character)), None)
  if first is None:
    return [word]
  last = next(i for i in range(len(word), 0, -1) if not is_punctuation(word[i - 1]))
  return [part for part in (word[:first], word[first:last], word[last:]) if part]


def drop_lone_spaces(pieces: Sequence[str]) -> list[str]:
  """Removes pieces that are only '▁' if they are last or precede a piece that begins with punctuation."""
  return [
    piece
    for i, piece in enumerate(pieces)
    if piece != _SPACE or (i + 1 < len(pieces) and not is_punctuation(pieces[i + 1][0]))
  ]


def tokenize_batch(processor, texts: Sequence[str]) -> list[list[str]]:
  """Returns the pieces of each text; an empty text has none. `processor` is a `SentencePieceProcessor`.

  Consecutive unknown characters are one piece, spelled as in the text.
  """
  lines = [" ".join(pretokenize(text)) for text in texts]
  return [drop_lone_spaces(pieces) for pieces in processor.encode(lines, out_type=str, num_threads=1)]


def encoder(processor, ids: dict[str, int], *, unknown: int) -> Callable[[Sequence[str]], list[list[int]]]:
  """Returns a function from texts to ids; a piece that is not in `ids` becomes `unknown`.

  `ids` must not have the special pieces, so that text cannot produce them. (The official code looks them up,
  but after its split no text spells one, unless one of its letters is unknown to the model.)
  """

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    return [[ids.get(piece, unknown) for piece in pieces] for pieces in tokenize_batch(processor, texts)]

  return encode_batch


def join(pieces: Sequence[str]) -> str:
  """Returns pieces as readable text: spaces inside pieces are removed, '▁' becomes a space."""
  return "".join(pieces).replace(" ", "").replace(_SPACE, " ").strip()


def truncate_pair(first: Sequence[int], second: Sequence[int], budget: int) -> tuple[list[int], list[int]]:
  """Cuts two sequences at their ends to `budget` ids in total, always the longer one (or the second)."""
  lengths = [len(first), len(second)]
  while sum(lengths) > max(budget, 0):
    lengths[0 if lengths[0] > lengths[1] else 1] -= 1
  return list(first[: lengths[0]]), list(second[: lengths[1]])
