"""Examples of replaced tokens: which are shown, and how their pieces read."""

import numpy as np
import pytest

from data import vocabulary
from pretrain.demo import examples as demo_examples
from pretrain.prepared import token_ids


def test_an_example_says_what_stood_there_and_what_the_encoder_read(small_records):
  words = vocabulary.load(small_records / "vocabulary")
  tokens = token_ids(str(small_records))
  some = [at for at in range(words.size) if at not in tokens.special]
  ids = np.array([[0, *some[:12], 2, 1, 1]])
  inputs = ids.copy()
  inputs[0, 2] = some[20]  # too near the start to have a context
  inputs[0, 9] = some[30]
  said = np.full(ids.shape, 0.1)
  said[0, 9] = 0.7
  arrays = {"ids": ids, "input_ids": inputs, "probability_replaced": said}
  (example,) = demo_examples.find_examples(arrays, words, tokens)
  assert example.original == demo_examples.shown_piece(words, ids[0, 9])
  assert example.replacement == demo_examples.shown_piece(words, some[30])
  assert example.probability == pytest.approx(0.7)


@pytest.mark.parametrize(
  ("kind", "piece", "shown"),
  [
    ("sentencepiece", "▁the", "the"),
    ("sentencepiece", "ing", "-ing"),
    ("sentencepiece", ",", ","),
    ("sentencepiece", "▁", "▁"),
    ("wordpiece", "the", "the"),
    ("wordpiece", "##ing", "-ing"),
  ],
)
def test_pieces_are_shown_for_people(kind, piece, shown):
  words = type("Words", (), {"kind": kind, "piece": lambda self, token_id: piece})()
  assert demo_examples.shown_piece(words, 0) == shown
