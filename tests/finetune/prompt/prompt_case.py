"""A WordPiece vocabulary that is read at a glance, and k-shot sets in it."""

import pathlib
from typing import NamedTuple

import numpy as np

from data import vocabulary
from data.vocabulary import train as vocabulary_train

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["?", ",", ".", "no", "yes", "maybe", "it", "was", "this", "is", "great", "terrible", "un", "##sure"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


class Split(NamedTuple):
  """What prompts read of a `data.glue.tasks.Split`."""

  first: list[str]
  second: list[str] | None
  labels: np.ndarray | None
  source: str = "kshot/train.tsv"


def make_vocabulary(directory: pathlib.Path, more: tuple[str, ...] = (), *, cased: bool = False):
  """The vocabulary of the words above, every letter, and `more`."""
  path = directory / "vocab.txt"
  path.write_text("\n".join([*SPECIAL, *WORDS, *LETTERS, *more]) + "\n", encoding="utf-8")
  return vocabulary_train.import_files(directory / "vocabulary", vocab_txt=str(path), cased=cased)


def ids_of(words: vocabulary.Vocabulary, pieces: str) -> list[int]:
  """Ids of pieces with spaces between them."""
  known = {words.piece(i): i for i in range(words.size)}
  return [known[piece] for piece in pieces.split(" ")]


def pieces_of(words: vocabulary.Vocabulary, ids) -> str:
  """The other way."""
  return " ".join(words.piece(int(i)) for i in ids)
