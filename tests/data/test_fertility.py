"""Words in ids, counted by hand: marks, scripts without spaces, unknown pieces, words that are cut."""

import numpy as np

from data import fertility, vocabulary
from data.fertility import Counts, Pieces

_SPECIAL = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")


def made(kind: str, *pieces: str) -> vocabulary.Vocabulary:
  """A vocabulary of these pieces, behind the special ones, that encodes nothing."""
  known = (*_SPECIAL, *pieces)
  return vocabulary.Vocabulary(
    kind,
    True,
    len(known),
    vocabulary.SpecialIds(0, 1, 2, 3, 4),
    "",
    "none",
    known,
    lambda _: [],
    "".join,
    (2,),
  )


WORDS = made(
  *("sentencepiece", "▁the", "▁cat", "s", ".", "▁", "日", "本", "の", "▁при", "вет", "1", "2", "<0xE4>", "की")
)


def counts(*pieces: str, words: vocabulary.Vocabulary = WORDS) -> Counts:
  found = Counts(Pieces(words))
  found.add(np.array([[words.piece(i) for i in range(words.size)].index(piece) for piece in pieces]))
  return found


def by_script(*pieces: str, words: vocabulary.Vocabulary = WORDS) -> dict[str, list[int]]:
  return {name: row.tolist() for name, row in counts(*pieces, words=words).by_script.items()}


BY_SCRIPT = [
  # Words, pieces, letters.
  (("[CLS]", "▁the", "▁cat", "s", ".", "[SEP]"), {"Latin": [2, 3, 7]}),
  (("▁при", "вет", "▁cat"), {"Cyrillic": [1, 2, 6], "Latin": [1, 1, 3]}),
  # A mark of its own belongs to the word behind it, and to nothing before a full stop.
  (("▁", "вет", "▁", "."), {"Cyrillic": [1, 2, 3]}),
  # Where a script without spaces begins or ends, so does a word.
  (("▁", "日", "本", "の", "s"), {"Han": [1, 3, 2], "Hiragana": [1, 1, 1], "Latin": [1, 1, 1]}),
  # What is unknown is a letter of its word, whose script the next piece tells.
  (("▁cat", "[UNK]", "s"), {"Latin": [1, 3, 5]}),
  (("▁", "[UNK]", "вет", "[SEP]", "[UNK]"), {"Cyrillic": [1, 3, 4], "[UNK]": [1, 1, 1]}),
  (("▁cat", "<0xE4>", ".", "1", "2"), {"Latin": [1, 2, 4], "digits": [1, 2, 2]}),
  # A vowel sign is a part of its word, though it is no letter to Python.
  (("की", "s"), {"Devanagari": [1, 2, 3]}),
  (("s", "[SEP]", "s"), {"Latin": [2, 2, 2]}),
  ((".",), {}),
]


def test_words_pieces_and_letters_of_each_script():
  for pieces, expected in BY_SCRIPT:
    assert by_script(*pieces) == expected, pieces


def test_wordpieces_continue_words_and_punctuation_ends_them():
  words = made("wordpiece", "the", "un", "##cut", "##s", "-")
  assert by_script("the", "un", "##cut", "##s", "-", "un", words=words) == {"Latin": [3, 5, 3 + 6 + 2]}
  assert counts("un", "##cut", "-", "un", words=words).most_cut() == [((6, 7), 1)]


def test_words_that_take_most_pieces_come_first():
  found = counts(*["▁cat", "s", "."] * 3, *["▁", "вет", "s", "s", "s"], *["日", "本", ".", "1", "2"], "▁the")
  # Four pieces more than one, once; one more, three times; neither Han nor numbers nor whole words.
  cat, vet = (6, 7), (9, 14, 7, 7, 7)
  assert found.most_cut() == [(vet, 1), (cat, 3)]


def test_totals_have_unknown_pieces_and_no_special_ones():
  found = counts("[CLS]", "▁cat", ".", "[UNK]", "[SEP]")
  assert found.total == 3
  found.add(np.array([3, 3]))
  assert found.total == 5
  assert found.used.tolist()[:7] == [1, 0, 1, 3, 0, 0, 1]


def test_scripts_are_named_by_their_letters():
  texts = {
    "の": "Hiragana",
    "ー": "Katakana",
    "々": "Han",
    "漢": "Han",
    "Ｗ": "Latin",
    "ก": "Thai",
    "ﬁ": "Latin",
  }
  assert {text: fertility.script(text) for text in texts} == texts
  assert [fertility.script(text) for text in "7٣.\u0301ˇ"] == ["digits", "digits", "", "other", "other"]
  assert [fertility.script_of_text(text) for text in ("12я", "12", "...", "\u0301")] == [
    *("Cyrillic", "digits", "", "other")
  ]
