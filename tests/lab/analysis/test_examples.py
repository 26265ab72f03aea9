"""Examples of masked tokens: which are shown."""

import numpy as np

from data import vocabulary
from pretrain.logs.examples import find_examples
from pretrain.reading.prepared import token_ids


def test_an_example_says_what_stood_there_and_what_the_encoder_guesses(small_records):
  words = vocabulary.load(small_records / "vocabulary")
  tokens = token_ids(str(small_records))
  some = [at for at in range(words.size) if at not in tokens.special]
  ids = np.array([[0, *some[:12], 2, 1, 1]])
  guesses, probability = np.full(ids.shape, some[30]), np.full(ids.shape, 0.25)
  chosen = np.zeros(ids.shape, bool)
  chosen[0, [0, 2, 9, 10]] = True  # special; too near the start to have a context; this one; not the first
  arrays = {"ids": ids, "selected": chosen, "guesses": guesses, "probability": probability}
  (example,) = find_examples(arrays, words, tokens)
  assert example.original == words.shown_piece(ids[0, 9])
  assert example.guess == words.shown_piece(some[30])
  assert example.probability == 0.25
  before, after = example.text.split("___")
  assert before.strip() == words.decode(ids[0, 3:9]) and after.strip() == words.decode(ids[0, 10:14])
