"""The rules about single documents, at their limits: sizes, symbols, repetition by counting, languages."""

import collections
import functools
import random
import sys

import pytest

from data import errors
from data.clean import rules

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
  assert rules.words_of(["a bc,", "d\te"]) == (["a", "bc,", "d", "e"], 1)
  assert rules.words_of([]) == ([], 1)
  found = rules.words_of(["我们是学生。"])
  assert found == (["我", "们", "是", "学", "生", "。"], 2) and found.number == 3
  # The greater part of a mixed text decides.
  assert rules.words_of(["four words and one 字"]) == (["four", "words", "and", "one", "字"], 1)
  assert rules.words_of(["文字 word"]).width == 2 and rules.words_of(["文字 two words"]).width == 1
  assert rules.words_of(["ภาษาไทย"]).width == rules.words_of(["ひらがな"]).width == 2
  assert rules.words_of(["나는 학생 입니다"]) == (["나는", "학생", "입니다"], 1)  # Korean has spaces


def distinct(number: int, start: int = 0) -> list[str]:
  """Returns words of three letters, all different."""
  return [
    chr(97 + n // 676) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(start, start + number)
  ]


def test_duplicate_lines_and_their_characters_are_counted_after_their_first():
  lines = ["a", "b", "c", *("-".join(distinct(5, start)) for start in (10, 20, 30, 40))]
  assert rules.repetition([*lines, *"abc"]) == [*lines, *"abc"]  # 3 of 10
  assert rules.repetition([*lines, *"abca"]) == "36% of lines are duplicates, more than 30%"
  lines = [*distinct(8), "x" * 8, "x" * 8]  # 8 of 40 characters
  assert rules.repetition(lines) == lines
  lines[-1] = lines[-2] = "x" * 9
  assert rules.repetition(lines) == "21% of characters in duplicate lines, more than 20%"


def test_the_most_frequent_n_gram():
  """Twice n words are 2 n / (2 n + rest) of all: 4/20, 6/34 (0.176), 8/50 are at their limits or below."""
  for n, least, filler, limit in ((2, 11, 16, 20), (3, 17, 28, 18), (4, 25, 42, 16)):
    gram, rest = distinct(n), distinct(100, 50)
    kept = [" ".join([*gram, *rest[:least], *gram, *rest[least:filler]])]
    assert rules.repetition(kept) == kept, n
    fewer = [" ".join([*gram, *rest[:least], *gram, *rest[least : filler - 1]])]
    assert f"in the most frequent {n}-gram, more than {limit}%" in rules.repetition(fewer)


def test_duplicate_n_grams_cover_both_places():
  """Several pairs of n-grams, each rare enough for the rules about the most frequent."""
  limits = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}  # Gopher, Table A1
  for n, limit in limits.items():
    grams = [distinct(n, 100 * (i + 1)) for i in range(4)]
    total = round(8 * n / limit)
    assert 8 * n / (total + 1) < limit < 8 * n / (total - 1)
    for size in (total + 1, total - 1):
      rest = iter(distinct(2000, 2000))
      text = [word for gram in [*grams, *grams] for word in (*gram, next(rest))]
      document = [" ".join([*text, *(next(rest) for _ in range(size - len(text)))])]
      said = f"in duplicate {n}-grams, more than {limit:.0%}"
      assert (said in rules.repetition(document)) == (size < total), n


def _by_counting(tokens: list[str], n: int) -> float:
  """Returns the part of characters in n-grams that occur more than once, position by position."""
  grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
  counts = collections.Counter(grams)
  inside = {j for i, gram in enumerate(grams) if counts[gram] > 1 for j in range(i, i + n)}
  return sum(len(tokens[j]) for j in inside) / sum(map(len, tokens))


def test_every_share_equals_that_by_counting(monkeypatch):
  """The rounds look at fewer and fewer places; counting looks at all of them.

  The shares are read from our own function, because a user sees only the first that is too large.
  """
  shares = []
  covered = rules._covered
  monkeypatch.setattr(rules, "_covered", lambda *args: shares.append(covered(*args)) or shares[-1])
  for name in ("MOST_IN_TOP", "MOST_IN_DUPLICATES"):
    monkeypatch.setattr(rules, name, dict.fromkeys(getattr(rules, name), 1.0))
  tokens = random.Random(0).choices(["a", "bb", "ccc"], k=300)
  assert rules._n_grams(rules.Words(tokens, 1)) == ""
  assert shares[3:] == pytest.approx([_by_counting(tokens, n) for n in range(5, 5 + len(shares) - 3)])
  for share, n in zip(shares, (2, 3, 4)):
    grams = list(zip(*(tokens[start:] for start in range(n))))
    counts = collections.Counter(grams)
    most = [gram for gram in counts if counts[gram] == max(counts.values())]
    longest = max(most, key=lambda gram: sum(map(len, gram)))
    places = {j for i, gram in enumerate(grams) if gram == longest for j in range(i, i + n)}
    assert share == pytest.approx(sum(len(tokens[j]) for j in places) / sum(map(len, tokens)))


def test_a_word_repeated_for_ever_is_dropped_and_a_short_text_is_not():
  said = "100% of characters in the most frequent 2-gram, more than 20%"
  assert rules.repetition(["spam " * 500]) == said
  assert rules.repetition(["a short text"]) == ["a short text"]
  assert rules.repetition([]) == []
  # Five characters without spaces are two words and a half: twice in 40 are 20 % in runs of two words.
  rest = "".join(chr(0x4E00 + n) for n in range(60))
  assert rules.repetition([rest[:5] + rest[20:50] + rest[:5]]) == [rest[:5] + rest[20:50] + rest[:5]]
  twice = rest[:10] + rest[20:50] + rest[:10]
  assert rules.repetition([twice]) == "24% of characters in the most frequent 3-gram, more than 18%"


GERMAN = ["Der Hund ist ein guter Freund des Menschen.", "Er bellt nur, wenn jemand vor der Tür steht."]
ENGLISH = ["The dog is a good friend of man.", "He only barks when a stranger is at the door of the house."]
HEBREW = ["הכלב הוא חבר טוב של האדם והוא נובח רק כאשר זר עומד ליד הדלת."]
# Technical text, whose detection CLD2 does not call reliable.
PAGE = ["cat - объединяет файлы и направляет их на стандартный вывод", "cat [ПАРАМЕТР]... [ФАЙЛ]..."]
PAGE += ["-A, --show-all эквивалентно -vET", "-b, --number-nonblank нумеровать непустые строки"] * 9


def test_documents_in_the_wanted_languages_are_kept():
  pycld2 = pytest.importorskip("pycld2", reason="needs requirements-clean.txt")
  assert not pycld2.detect("\n".join(PAGE), isPlainText=True)[0]
  tagged = ["<p title='", *ENGLISH * 2, "'>", *GERMAN]  # as HTML, CLD2 would leave out the English
  long = [*ENGLISH * 110, *GERMAN * 500]  # of which 10,000 characters are looked at
  assert sum(map(len, ENGLISH * 110)) + 109 * 2 < 10_500
  failures = []
  for wanted, document, dropped in (
    ("de+en", GERMAN, ""),
    ("de+en", ENGLISH, ""),
    ("de+en", HEBREW, "language he"),
    ("en", GERMAN, "language de"),
    ("he", HEBREW, ""),
    ("en", ["abc"], "language not detected"),
    ("ru", PAGE, ""),
    ("uk", PAGE, "language ru"),
    ("en", tagged, ""),
    ("en", long, ""),
  ):
    found = rules.language(document, wanted=rules.codes(wanted))
    if found != (dropped or document):
      failures.append(f"{wanted} {document[0]}: {found}")
  assert not failures, "\n".join(failures)
  assert rules.codes("he+no+nb+jv") == {"iw", "no", "jw"}
  for code in ("eng", "xx", "", "EN"):
    with pytest.raises(errors.ConfigError, match=rf"language '{code}'.* known: aa, ab, .*, zzp, he"):
      rules.codes(f"de+{code}")


def test_no_character_stops_the_detection():
  """CLD2 raises for each of these in a text; all others it takes."""
  pycld2 = pytest.importorskip("pycld2", reason="needs requirements-clean.txt")
  for code in range(sys.maxunicode + 1):
    if code < 0x300 or 0xD7FF < code < 0xE001 or 0xFDCF < code < 0xFDF1 or code & 0xFFFF > 0xFFFC:
      character = chr(code)
      rules.language(["Hello " + character], wanted=frozenset())
  with pytest.raises(pycld2.error):
    pycld2.detect("Hello \x0b", isPlainText=True)
