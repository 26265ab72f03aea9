"""Spoilt sentences: in what they differ from those that were written."""

import collections

import numpy as np

from pretrain.demo import probes

TEXT = (
  "the list of names is read before the first value was found",
  "all values of an array are kept if they were there before , and none has a name",
)


class Words:
  """A vocabulary whose pieces are words."""

  special_ids = collections.namedtuple("Special", "sep")(1)
  known = sorted({word for sentence in TEXT for word in sentence.split()})

  def decode(self, ids):
    return " ".join(self.known[number - 2] for number in ids)


class Records:
  """One block: the end of a sentence, both sentences, the beginning of one, padding."""

  def __len__(self):
    return 1

  def rows(self, first, last):
    assert (first, last) == (0, 1)
    numbers = [[Words.known.index(word) + 2 for word in sentence.split()] for sentence in TEXT]
    return np.asarray([[0, *numbers[1][5:], 1, *numbers[0], 1, *numbers[1], 1, *numbers[0][:9], 0, 0]])


def differing(pair):
  return [at for at, (good, bad) in enumerate(zip(pair.good, pair.bad, strict=True)) if good != bad]


def test_only_whole_sentences_are_asked_about_and_each_is_spoilt_in_one_way():
  made = probes.spoilt(Words(), Records())
  assert {kind: [" ".join(pair.good) for pair in pairs] for kind, pairs in made.items()} == {
    kind: list(TEXT) for kind in ("order of two words", "choice of a word", "number of a verb")
  }
  for pair in made["order of two words"]:
    first, second = differing(pair)
    assert second == first + 1
    assert (pair.good[first], pair.good[second]) == (pair.bad[second], pair.bad[first])
  for pair in made["choice of a word"]:
    (at,) = differing(pair)
    assert pair.bad[at] in Words.known and pair.bad[at].isalpha()
  assert [(pair.good[at], pair.bad[at]) for pair in made["number of a verb"] for at in differing(pair)] == [
    ("is", "are"),
    ("are", "is"),
  ]


def test_a_replacement_is_about_as_frequent():
  rng = probes.random.Random(0)
  order = [f"w{chr(97 + at)}" for at in range(26)]
  rank = {word: at for at, word in enumerate(order)}
  for at in range(26):
    bad = probes._replaced([order[at]], order, rank, rng)
    assert 0 < abs(rank[bad[0]] - at) <= 5


def test_no_more_than_asked(monkeypatch):
  monkeypatch.setattr(probes, "NUM_PAIRS", 1)
  assert [len(pairs) for pairs in probes.spoilt(Words(), Records()).values()] == [1, 1, 1]
