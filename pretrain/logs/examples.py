"""Masked tokens in their context, for people: what the encoder would put there on held-out blocks."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from data.vocabulary import Vocabulary
from pretrain.corruption.masking import TokenIds

NUM_EXAMPLES = 10
TOKENS_BEFORE, TOKENS_AFTER = 6, 4  # context of an example


class Example(NamedTuple):
  """A token that was chosen to be predicted, in its context."""

  text: str  # the original around a gap
  original: str
  guess: str  # the likeliest token
  probability: float  # the encoder's, of the original


def find_examples(arrays: Mapping[str, np.ndarray], words: Vocabulary, tokens: TokenIds) -> list[Example]:
  """The first chosen token of each of the first `NUM_EXAMPLES` blocks that have one.

  They are not chosen by the encoder's answers; special tokens are no examples. The arrays are those of
  `describe_guesses`.
  """
  ids = arrays["ids"]
  candidates = arrays["selected"] & ~np.isin(ids, tokens.special)
  candidates[:, :TOKENS_BEFORE] = False  # a context to the left shows what belongs there
  examples = []
  for row in np.flatnonzero(candidates.any(axis=-1))[:NUM_EXAMPLES]:
    at = int(candidates[row].argmax())
    end = min(at + 1 + TOKENS_AFTER, int((ids[row] != tokens.pad).sum()))
    before, after = words.decode(ids[row, at - TOKENS_BEFORE : at]), words.decode(ids[row, at + 1 : end])
    original, guess = (words.shown_piece(arrays[name][row, at]) for name in ("ids", "guesses"))
    probability = float(arrays["probability"][row, at])
    examples.append(Example(f"{before} ___ {after}".strip(), original, guess, probability))
  return examples
