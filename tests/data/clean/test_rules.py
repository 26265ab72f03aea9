"""The rules about single documents, at their limits; words of documents, with spaces and without."""

import functools

from data.clean import rules, words

LENGTH = functools.partial(rules.length, least=5, most=8)
WORDS = functools.partial(rules.word_number, least=2, most=3)
SYMBOLS = rules.symbols
ELLIPSES = ["word word word word..."] * 3 + ["many more of these words"] * 7
CASES = [  # rule, a document that is kept, one that is dropped, what the reason begins with
  (LENGTH, ["abc", "de"], ["abcd"], "4 characters, fewer than 5"),
  (LENGTH, ["abcd", "efgh"], ["abcd", "efghi"], "9 characters, more than 8"),
  (WORDS, ["a", "b"], ["a"], "1 word, fewer than 2"),
  (WORDS, ["a", "b c"], ["a b", "c d"], "4 words, more than 3"),
  (WORDS, ["学生学生"], ["学生学"], "1 word, fewer than 2"),  # of two characters
  (SYMBOLS, ["#tags " + "word " * 9], ["#tags #too " + "word " * 8], "0.20 hash signs a word"),
  (SYMBOLS, ["我们是学#生" + "我们是学生" * 3], ["我们是#学生"], "0.33 hash signs a word"),
  (SYMBOLS, ["so... " + "word " * 9], ["so... and\u2026 " + "word " * 8], "0.20 ellipses a word"),
  (SYMBOLS, ["-item"] * 9 + ["text"], ["\u2022item"], "100% of lines begin with a bullet"),
  (SYMBOLS, ELLIPSES, ["one word and many more and another..."] * 4 + ELLIPSES[4:], "40% of lines end in an"),
  (SYMBOLS, ["four words and one 12345"], ["three words and 12345 67890"], "60% of words have a letter"),
  (SYMBOLS, ["it's e-mail b2b"], ["12 34 (56) abc"], "25% of words have a letter"),
  (SYMBOLS, ["abc abc"], ["ab abc"], "words of 2.5 characters on average"),
  (SYMBOLS, ["abcdefghij"], ["abcdefghijk"], "words of 11.0 characters on average"),
  (SYMBOLS, ["我们是学生"], [], "0% of words have a letter"),  # no short words
  (rules.stop_words, ["The end", "OF it"], ["the the the"], "1 of 8 stop words"),
]


def test_documents_are_kept_up_to_the_limits():
  failures = []
  for number, (rule, kept, dropped, reason) in enumerate(CASES):
    if rule(kept) != kept or not str(rule(dropped)).startswith(reason):
      failures.append(f"{number}: {rule(kept)}, {rule(dropped)}")
  assert not failures, "\n".join(failures)


def test_words_are_cut_at_spaces_and_two_characters_of_a_script_without_spaces_are_one():
  assert words.of(["a bc,", "d\te"]) == (["a", "bc,", "d", "e"], 1)
  assert words.of([]) == ([], 1)
  found = words.of(["我们是学生。"])
  assert found == (["我", "们", "是", "学", "生", "。"], 2) and found.number == 3
  # The greater part of a mixed text decides.
  assert words.of(["four words and one 字"]) == (["four", "words", "and", "one", "字"], 1)
  assert words.of(["文字 word"]).width == 2 and words.of(["文字 two words"]).width == 1
  assert words.of(["ภาษาไทย"]).width == words.of(["ひらがな"]).width == 2
  assert words.of(["나는 학생 입니다"]) == (["나는", "학생", "입니다"], 1)  # Korean has spaces
