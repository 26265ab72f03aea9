"""Repeated lines and n-grams, in documents small enough to count by hand."""

import collections
import random

import pytest

from data.clean import repetition, words


def distinct(number: int, start: int = 0) -> list[str]:
  """Returns words of three letters, all different."""
  return [
    chr(97 + n // 676) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(start, start + number)
  ]


def test_duplicate_lines_and_their_characters_are_counted_after_their_first():
  lines = ["a", "b", "c", *("-".join(distinct(5, start)) for start in (10, 20, 30, 40))]
  assert repetition.repetition([*lines, *"abc"]) == [*lines, *"abc"]  # 3 of 10
  assert repetition.repetition([*lines, *"abca"]) == "36% of lines are duplicates, more than 30%"
  lines = [*distinct(8), "x" * 8, "x" * 8]  # 8 of 40 characters
  assert repetition.repetition(lines) == lines
  lines[-1] = lines[-2] = "x" * 9
  assert repetition.repetition(lines) == "21% of characters in duplicate lines, more than 20%"


def test_the_most_frequent_n_gram():
  """Twice n words are 2 n / (2 n + rest) of all: 4/20, 6/34 (0.176), 8/50 are at their limits or below."""
  for n, least, filler, limit in ((2, 11, 16, 20), (3, 17, 28, 18), (4, 25, 42, 16)):
    gram, rest = distinct(n), distinct(100, 50)
    kept = [" ".join([*gram, *rest[:least], *gram, *rest[least:filler]])]
    assert repetition.repetition(kept) == kept, n
    fewer = [" ".join([*gram, *rest[:least], *gram, *rest[least : filler - 1]])]
    assert f"in the most frequent {n}-gram, more than {limit}%" in repetition.repetition(fewer)


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
      assert (said in repetition.repetition(document)) == (size < total), n


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
  covered = repetition._covered
  monkeypatch.setattr(repetition, "_covered", lambda *args: shares.append(covered(*args)) or shares[-1])
  for name in ("MOST_IN_TOP", "MOST_IN_DUPLICATES"):
    monkeypatch.setattr(repetition, name, dict.fromkeys(getattr(repetition, name), 1.0))
  tokens = random.Random(0).choices(["a", "bb", "ccc"], k=300)
  assert repetition._n_grams(words.Words(tokens, 1)) == ""
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
  assert repetition.repetition(["spam " * 500]) == said
  assert repetition.repetition(["a short text"]) == ["a short text"]
  assert repetition.repetition([]) == []
  # Five characters without spaces are two words and a half: twice in 40 are 20 % in runs of two words.
  rest = "".join(chr(0x4E00 + n) for n in range(60))
  assert repetition.repetition([rest[:5] + rest[20:50] + rest[:5]]) == [rest[:5] + rest[20:50] + rest[:5]]
  twice = rest[:10] + rest[20:50] + rest[:10]
  assert repetition.repetition([twice]) == "24% of characters in the most frequent 3-gram, more than 18%"
