"""Repeated lines and n-grams, in documents small enough to count by hand."""

import collections
import itertools
import random

import pytest

from data.clean import repetition, words


def distinct(number: int, start: int = 0) -> list[str]:
  """Returns words of three letters, all different."""
  return [
    chr(97 + n // 676) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(start, start + number)
  ]


def test_duplicate_lines_are_counted_after_their_first():
  lines = ["a", "b", "c", *("-".join(distinct(5, start)) for start in (10, 20, 30, 40))]
  assert repetition.repetition([*lines, *"abc"]) == [*lines, *"abc"]  # 3 of 10
  assert repetition.repetition([*lines, *"abca"]) == "36% of lines are duplicates, more than 30%"


def test_characters_of_duplicate_lines():
  lines = [*distinct(8), "x" * 8, "x" * 8]  # 8 of 40 characters
  assert repetition.repetition(lines) == lines
  lines[-1] = lines[-2] = "x" * 9
  assert repetition.repetition(lines) == "21% of characters in duplicate lines, more than 20%"


@pytest.mark.parametrize(("n", "least"), [(2, 11), (3, 17), (4, 25)])
def test_the_most_frequent_n_gram(n, least):
  """Twice n words are 2 n / (2 n + rest) of all: 4/20, 6/34 (0.176), 8/50 are at their limits or below."""
  gram, rest = distinct(n), distinct(100, 50)
  filler = {2: 16, 3: 28, 4: 42}[n]
  kept = [" ".join([*gram, *rest[:least], *gram, *rest[least:filler]])]
  assert repetition.repetition(kept) == kept
  fewer = [" ".join([*gram, *rest[:least], *gram, *rest[least : filler - 1]])]
  assert f"in the most frequent {n}-gram, more than" in repetition.repetition(fewer)


@pytest.mark.parametrize(("n", "limit"), repetition.MOST_IN_DUPLICATES.items())
def test_duplicate_n_grams_cover_both_places(n, limit):
  """Several pairs of n-grams, each rare enough for the rules about the most frequent."""
  grams = [distinct(n, 100 * (i + 1)) for i in range(4)]
  covered = 8 * n
  total = round(covered / limit)
  rest = iter(distinct(total, 2000))

  def document(words_in_all: int) -> list[str]:
    nonlocal rest
    rest = iter(distinct(2000, 2000))
    text = [word for gram in [*grams, *grams] for word in (*gram, next(rest))]
    return [" ".join([*text, *(next(rest) for _ in range(words_in_all - len(text)))])]

  assert covered / (total + 1) < limit
  assert not repetition._n_grams(words.of(document(total + 1)))
  reason = repetition._n_grams(words.of(document(total - 1)))
  assert reason.endswith(f"in duplicate {n}-grams, more than {limit:.0%}")


def _by_counting(tokens: list[str], n: int) -> float:
  """Returns the part of characters in n-grams that occur more than once, position by position."""
  grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
  counts = collections.Counter(grams)
  inside = {j for i, gram in enumerate(grams) if counts[gram] > 1 for j in range(i, i + n)}
  return sum(len(tokens[j]) for j in inside) / sum(map(len, tokens))


def test_every_share_equals_that_by_counting(monkeypatch):
  """The rounds look at fewer and fewer places; counting looks at all of them."""
  shares = []
  covered = repetition._covered
  monkeypatch.setattr(repetition, "_covered", lambda *args: shares.append(covered(*args)) or shares[-1])
  for name in ("MOST_IN_TOP", "MOST_IN_DUPLICATES"):
    monkeypatch.setattr(repetition, name, dict.fromkeys(getattr(repetition, name), 1.0))
  rng = random.Random(0)
  tokens = rng.choices(["a", "bb", "ccc"], k=300)
  assert repetition._n_grams(words.Words(tokens, 1)) == ""
  assert shares[3:] == pytest.approx([_by_counting(tokens, n) for n in range(5, 5 + len(shares) - 3)])
  pairs = collections.Counter(itertools.pairwise(tokens))
  most = max(pairs.values())
  longest = max((pair for pair in pairs if pairs[pair] == most), key=lambda pair: sum(map(len, pair)))
  places = {j for i in range(299) if (tokens[i], tokens[i + 1]) == longest for j in (i, i + 1)}
  assert shares[0] == pytest.approx(sum(len(tokens[j]) for j in places) / sum(map(len, tokens)))


def test_a_word_repeated_for_ever_is_dropped_and_a_short_text_is_not():
  assert (
    repetition.repetition(["spam " * 500]) == "100% of characters in the most frequent 2-gram, more than 20%"
  )
  assert repetition.repetition(["a short text"]) == ["a short text"]
  assert repetition.repetition([]) == []


def test_without_spaces_an_n_gram_has_twice_the_characters():
  """Five characters are two words and a half, so twice of them in 40 are 20 % in runs of two words."""
  rest = "".join(chr(0x4E00 + n) for n in range(60))
  assert repetition.repetition([rest[:5] + rest[20:50] + rest[:5]]) == [rest[:5] + rest[20:50] + rest[:5]]
  twice = rest[:10] + rest[20:50] + rest[:10]
  assert repetition.repetition([twice]) == "24% of characters in the most frequent 3-gram, more than 18%"
