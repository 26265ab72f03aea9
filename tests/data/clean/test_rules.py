"""The rules about single documents, at their limits."""

import functools

import pytest

from data.clean import rules

LENGTH = functools.partial(rules.length, least=5, most=8)
WORDS = functools.partial(rules.word_number, least=2, most=3)
PLAIN = ["plain words are good here"] * 2


def test_length_is_that_of_all_paragraphs():
  assert LENGTH(["abc", "de"]) == ["abc", "de"]
  assert LENGTH(["abcd", "efgh"]) == ["abcd", "efgh"]
  assert LENGTH(["abcd"]) == "4 characters, fewer than 5"
  assert LENGTH(["abcd", "efghi"]) == "9 characters, more than 8"


def test_words_are_counted_over_paragraphs():
  assert WORDS(["a", "b c"]) == ["a", "b c"]
  assert WORDS(["a"]) == "1 word, fewer than 2"
  assert WORDS(["a b", "c d"]) == "4 words, more than 3"
  assert WORDS(["学生学生"]) == ["学生学生"]  # four characters


@pytest.mark.parametrize(
  ("kept", "dropped", "reason"),
  [
    (["#tags " + "word " * 9], ["#tags #too " + "word " * 8], "0.20 hash signs a word, more than 0.1"),
    (["so... " + "word " * 9], ["so... and\u2026 " + "word " * 8], "0.20 ellipses a word, more than 0.1"),
    (["-item"] * 9 + ["text"], ["\u2022item"] * 10, "100% of lines begin with a bullet, more than 90%"),
    (
      ["word word word word..."] * 3 + ["many more of these words"] * 7,
      ["one word and many more and another one..."] * 4 + ["many more of these words here"] * 6,
      "40% of lines end in an ellipsis, more than 30%",
    ),
    (
      ["four words and one 12345"],
      ["three words and 12345 67890"],
      "60% of words have a letter, fewer than 80%",
    ),
    (["abc abc"], ["ab abc"], "words of 2.5 characters on average, outside 3 to 10"),
    (["abcdefghij"], ["abcdefghijk"], "words of 11.0 characters on average, outside 3 to 10"),
  ],
)
def test_symbols_are_allowed_up_to_the_limit(kept, dropped, reason):
  assert rules.symbols(kept) == kept
  assert rules.symbols(dropped) == reason


def test_characters_without_spaces_are_no_short_words():
  assert rules.symbols(["我们是学生"]) == ["我们是学生"]


def test_two_different_stop_words_are_enough():
  assert rules.stop_words(["The end", "OF it"]) == ["The end", "OF it"]
  assert rules.stop_words(["the the the"]) == "1 of 8 stop words, fewer than 2"


def test_a_document_without_text_is_dropped_or_kept_without_an_error():
  assert rules.symbols([]) == "0% of words have a letter, fewer than 80%"
  assert rules.symbols(PLAIN) == PLAIN
