"""Replaced tokens in their context, for people: what the encoder answers on held-out blocks."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from data.vocabulary import Vocabulary
from pretrain.corruption.masking import TokenIds

NUM_EXAMPLES = 10
TOKENS_BEFORE, TOKENS_AFTER = 6, 4  # context of an example


class Example(NamedTuple):
  """A replaced token in its context."""

  text: str  # as the encoder read it, the replacement between >> and <<
  original: str
  replacement: str
  probability: float  # the encoder's, that the token was replaced


def find_examples(arrays: Mapping[str, np.ndarray], words: Vocabulary, tokens: TokenIds) -> list[Example]:
  """The first replaced token of each of the first `NUM_EXAMPLES` blocks that have one.

  They are not chosen by the encoder's answers; special tokens are no examples. Of the arrays 'ids' and
  'input_ids' are [rows, length] int, 'probability_replaced' [rows, length] float.
  """
  ids, inputs = arrays["ids"], arrays["input_ids"]
  candidates = (ids != inputs) & ~np.isin(ids, tokens.special) & ~np.isin(inputs, tokens.special)
  candidates[:, :TOKENS_BEFORE] = False  # a context to the left shows what belongs there
  examples = []
  for row in np.flatnonzero(candidates.any(axis=-1))[:NUM_EXAMPLES]:
    at = int(candidates[row].argmax())
    end = min(at + 1 + TOKENS_AFTER, int((ids[row] != tokens.pad).sum()))
    text = " ".join(
      [
        words.decode(inputs[row, at - TOKENS_BEFORE : at]),
        f">>{shown_piece(words, inputs[row, at])}<<",
        words.decode(inputs[row, at + 1 : end]),
      ]
    )
    original, replacement = (shown_piece(words, side[row, at]) for side in (ids, inputs))
    probability = float(arrays["probability_replaced"][row, at])
    examples.append(Example(text.strip(), original, replacement, probability))
  return examples


def shown_piece(words: Vocabulary, token_id: int) -> str:
  """A piece for people: 'token' begins a word, '-ing' continues one, ',' is itself."""
  piece = words.piece(int(token_id))
  if words.kind == "wordpiece":
    begins, letters = not piece.startswith("##"), piece.removeprefix("##")
  else:
    begins, letters = piece.startswith("▁"), piece.removeprefix("▁")
  return letters or piece if begins or not letters[:1].isalnum() else f"-{letters}"
