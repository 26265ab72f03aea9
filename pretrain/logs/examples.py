"""Shows masked tokens in context, with the encoder's predictions, on held-out blocks."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from data.vocabulary import Vocabulary
from pretrain.corruption.masking import TokenIds

NUM_EXAMPLES = 10
TOKENS_BEFORE, TOKENS_AFTER = 6, 4  # context of an example, in tokens


class Example(NamedTuple):
  """A masked token of a held-out block: text around it, original, and the encoder's prediction."""

  text: str  # the original text with a gap
  original: str
  guess: str  # the most probable token
  probability: float  # of the original token, by the encoder


def find_examples(arrays: Mapping[str, np.ndarray], words: Vocabulary, tokens: TokenIds) -> list[Example]:
  """Returns one predicted token of each of the first `NUM_EXAMPLES` held-out blocks that have any.

  They are not selected by the encoder's answers; special tokens are skipped. `arrays` are from
  `describe_guesses`.
  """
  ids = arrays["ids"]
  candidates = arrays["selected"] & ~np.isin(ids, tokens.special)
  candidates[:, :TOKENS_BEFORE] = False  # every example needs context on the left
  examples = []
  for row in np.flatnonzero(candidates.any(axis=-1))[:NUM_EXAMPLES]:
    at = int(candidates[row].argmax())
    end = min(at + 1 + TOKENS_AFTER, int((ids[row] != tokens.pad).sum()))
    before, after = words.decode(ids[row, at - TOKENS_BEFORE : at]), words.decode(ids[row, at + 1 : end])
    original, guess = (words.shown_piece(arrays[name][row, at]) for name in ("ids", "guesses"))
    probability = float(arrays["probability"][row, at])
    examples.append(Example(f"{before} ___ {after}".strip(), original, guess, probability))
  return examples
