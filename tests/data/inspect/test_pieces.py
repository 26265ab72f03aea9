"""Words in ids, counted by hand: marks, scripts without spaces, unknown pieces, words that are cut."""

import numpy as np
import pytest

from data import vocabulary
from data.inspect import fertility, scripts
from data.inspect.look import Look
from data.inspect.pieces import Counts, Pieces

_SPECIAL = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")


def made(kind: str, *pieces: str) -> vocabulary.Vocabulary:
  """A vocabulary of these pieces, behind the special ones, that encodes nothing."""
  known = (*_SPECIAL, *pieces)
  return vocabulary.Vocabulary(
    kind, True, len(known), vocabulary.SpecialIds(0, 1, 2, 3, 4), "", "none", known, lambda _: [], "".join
  )


WORDS = made(
  *("sentencepiece", "▁the", "▁cat", "s", ".", "▁", "日", "本", "の", "▁при", "вет", "1", "2", "<0xE4>", "की")
)


def counts(*pieces: str, words: vocabulary.Vocabulary = WORDS, language: str = "xx") -> Counts:
  found = Counts(Pieces(words))
  found.add(
    np.array([[words.piece(i) for i in range(words.size)].index(piece) for piece in pieces]), language
  )
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


def test_rates_of_a_language_are_those_of_its_words_unless_it_is_written_without_spaces():
  pytest.importorskip("pycld2")
  for pieces, expected in (
    (("▁the", "▁cat", "s", "日", "本"), ["1.500", "0.429", "0.00%"]),  # 3 pieces, 2 words, 7 letters
    (("日", "本", "の", "s"), ["-", "1.000", "0.00%"]),  # most letters are in words without spaces
    (("▁", "s", "▁", "s", "日", "本"), ["2.000", "2.000", "0.00%"]),  # half of them: these words count
    (("▁the", "[UNK]") + ("▁cat",) * 8, ["1.111", "0.357", "10.00%"]),
    (("▁the", "[UNK]") + ("▁cat",) * 7, ["-", "-", "11.11%"]),  # too many to say anything about words
  ):
    found = counts(*pieces)
    report = fertility.by_language([Look("x", WORDS, found.pieces, found)])
    (row,) = report.rows
    assert (
      row["language"] == "xx" and [row[name] for name in ("per word", "per character", "unknown")] == expected
    )


def test_wordpieces_continue_words_and_punctuation_ends_them():
  words = made("wordpiece", "the", "un", "##cut", "##s", "-")
  assert by_script("the", "un", "##cut", "##s", "-", "un", words=words) == {"Latin": [3, 5, 3 + 6 + 2]}
  assert counts("un", "##cut", "-", "un", words=words).most_cut(3) == [((6, 7), 1)]


def test_words_that_take_most_pieces_come_first():
  found = counts(*["▁cat", "s", "."] * 3, *["▁", "вет", "s", "s", "s"], *["日", "本", ".", "1", "2"], "▁the")
  # Four pieces more than one, once; one more, three times; neither Han nor numbers nor whole words.
  cat, vet = (6, 7), (9, 14, 7, 7, 7)
  assert found.most_cut(9) == [(vet, 1), (cat, 3)]
  assert found.most_cut(1) == [(vet, 1)]


def test_totals_have_unknown_pieces_and_no_special_ones():
  found = counts("[CLS]", "▁cat", ".", "[UNK]", "[SEP]")
  assert (found.total, found.unknown["xx"], found.texts["xx"]) == (3, 1, 1)
  found.add(np.array([3, 3]), "yy")
  assert (found.total, dict(found.unknown)) == (5, {"xx": 1, "yy": 2})
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
  assert {text: scripts.of(text) for text in texts} == texts
  assert [scripts.of(text) for text in "7٣.\u0301ˇ"] == ["digits", "digits", "", "other", "other"]
  assert [scripts.of_text(text) for text in ("12я", "12", "...", "\u0301")] == [
    *("Cyrillic", "digits", "", "other")
  ]
