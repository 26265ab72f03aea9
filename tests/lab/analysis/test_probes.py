"""Probes of a stand-in encoder whose vectors and scores are planted: what each probe must find is known."""

import dataclasses
import types
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from data.annotated import MinimalPair, Relation, Sentence
from data.glue.tasks import Split
from lab.analysis import probes
from lab.analysis.probes import WITHOUT, Figure, Probe

RNG = np.random.default_rng(0)
WORDS = "abcd"
CHANCE = 0.1  # how far a share of the cases below may be from chance: five standard errors or more


def _vectors(sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
  """Of every word a one-hot row at the first depth, noise at the second, the row scaled at the last."""
  found = []
  for sentence in sentences:
    one_hot = np.eye(len(WORDS))[[WORDS.index(word) for word in sentence]]
    found.append(np.stack([one_hot, RNG.standard_normal(one_hot.shape), 1 - 9 * one_hot], axis=1))
  return found


def _embedder(vector_of: Callable[[str], np.ndarray]) -> types.SimpleNamespace:
  return types.SimpleNamespace(
    inputs=list, vectors=lambda texts: np.stack([vector_of(text) for text in texts])
  )


def _frozen(**parts) -> types.SimpleNamespace:
  """A stand-in for `FrozenEncoder`: what is not named knows nothing."""
  silent = {"words": _vectors, "likelihoods": lambda _: None, "originality": lambda _: None}
  return types.SimpleNamespace(**silent | parts)


def _measured(probe: Probe, **parts) -> dict[str, float]:
  """{what was read: value}."""
  return {figure.read: figure.value for figure in probe.measure(_frozen(**parts))}


def _sentence() -> Sentence:
  """Six words whose relations follow from the word and its head alone; the first is the root."""
  words = tuple(RNG.choice([*WORDS], 6))
  heads = (-1, *(int(RNG.choice([other for other in range(6) if other != at])) for at in range(1, 6)))
  relations = ["root", *(f"{words[at] in 'ab'} {words[heads[at]] in 'ac'}" for at in range(1, 6))]
  return Sentence(words, tuple(word.upper() for word in words), heads, tuple(relations))


def test_a_relation_is_read_off_a_word_and_its_own_head():
  train, test = ([_sentence() for _ in range(number)] for number in (200, 100))
  probe = probes.Dependencies(train, test)
  found = _measured(probe)
  assert found["tokens"] == found["last"] == 1.0
  assert found["middle"] == pytest.approx(0.25, abs=CHANCE)
  (trivial,) = probe.without_model()  # the word tells its half of the relation
  assert trivial.value == pytest.approx(0.5, abs=CHANCE) and trivial.count == 500
  # The same words with other heads have other relations.
  moved = [
    dataclasses.replace(sentence, heads=(-1, *((head + 1) % 6 for head in sentence.heads[1:])))
    for sentence in test
  ]
  assert _measured(probes.Dependencies(train, moved))["last"] == pytest.approx(0.5, abs=CHANCE)


def test_the_tag_of_a_word_and_the_relation_of_two_spans_are_read_off_their_vectors():
  train, test = ([_sentence() for _ in range(100)] for _ in range(2))
  found = {
    (figure.cases, figure.read): figure for figure in probes.PartOfSpeech(train, test).measure(_frozen())
  }
  assert found["all words", "tokens"].value == found["all words", "last"].value == 1.0
  assert found["all words", "middle"].value == pytest.approx(0.25, abs=CHANCE)
  assert found["ambiguous", "last"].count == found["unseen", "last"].count == 0

  def relation() -> Relation:
    words = tuple(RNG.choice([*WORDS], 6))
    first, second = words[1] in "ab", words[4] in "ac"
    return Relation(words, ((1, 2), (4, 5)), f"{first} {second}")

  of_spans = _measured(probes.Relations(*([relation() for _ in range(200)] for _ in range(2))))
  assert of_spans["tokens"] == of_spans["last"] == 1.0
  assert of_spans["middle"] == pytest.approx(0.25, abs=CHANCE)


def test_words_are_ambiguous_by_their_tags_in_training_and_unseen_without_any():
  def tagged(words: str, *tags: str) -> Sentence:
    return Sentence(tuple(words), tags, (-1,) * len(words), ("root",) * len(words))

  train = [tagged("aab", "X", "Y", "X")] + [tagged("b", "X")] * 18 + [tagged("bc", "Y", "Z")]
  probe = probes.PartOfSpeech(train, [tagged("Abd", "Y", "X", "Z"), tagged("ac", "X", "X")])
  found = {figure.cases: (figure.value, figure.count) for figure in probe.without_model()}
  assert found == {"all words": (0.6, 5), "ambiguous": (0.5, 2), "unseen": (1.0, 1)}


def _split(first: Sequence[str], labels: Sequence, second: Sequence[str] | None = None) -> Split:
  ids = [str(number) for number in range(len(first))]
  return Split([*first], second and [*second], np.asarray(labels), ids, 0, "planted", True)


def test_praise_is_read_off_the_vector_of_its_own_sentence():
  def reviews(number: int, *, is_swapped: bool = False) -> Split:
    labels = RNG.integers(0, 2, number)
    return _split([f"{('bad', 'good')[label]} {n}" for n, label in enumerate(labels)], labels ^ is_swapped)

  knows = _embedder(lambda text: np.asarray([text.startswith("good"), 1.0]))
  embedders = {"mean": knows, "cls": _embedder(lambda text: RNG.standard_normal(2))}
  train = reviews(300)
  found = _measured(probes.Sentiment("planted", train, reviews(400)), embedders=embedders)
  assert found == {"mean": 1.0, "cls": pytest.approx(0.5, abs=CHANCE + 0.03)}
  swapped = probes.Sentiment("planted", train, reviews(400, is_swapped=True))
  assert _measured(swapped, embedders=embedders)["mean"] == 0.0
  assert swapped.without_model()[0].value == 0.0
  assert probes.Sentiment("planted", train, reviews(400)).without_model()[0].value == 1.0


def test_cosines_of_the_two_sentences_are_ranked_as_people_rank_them():
  scores = np.asarray([0.0, 1.5, 2.5, 4.0, 5.0], np.float32)

  def turned(text: str) -> np.ndarray:
    """One direction for the first sentences, an angle from it for the second ones."""
    angle = 0.0 if text == "ba" else 0.5 * (5 - float(text))
    return np.asarray([np.cos(angle), np.sin(angle)])

  opposite = _embedder(lambda text: turned(text) * (1 if text == "ba" else -1))
  probe = probes.Similarity("planted", _split(["ba"] * 5, scores, [*map(str, scores)]))
  found = _measured(probe, embedders={"mean": _embedder(turned), "cls": opposite})
  assert found == {"mean": pytest.approx(1), "cls": pytest.approx(-1)}
  shared = _split(["a b c d"] * 3, [1.0, 3.0, 2.0], ["e f g h", "a b c d", "a b e f"])
  (trivial,) = probes.Similarity("shared words", shared).without_model()
  assert trivial.value == pytest.approx(1) and (trivial.cases, trivial.count) == ("shared words", 3)


PAIRS = [MinimalPair(("the", noun, "is"), ("the", noun, "are")) for noun in ("ba", "ke", "fi")] + [
  MinimalPair(("the", "dogs", "are"), ("the", "dogs", "is"))
]


def test_the_grammatical_sentence_is_the_one_that_must_be_likelier():
  def likes_is(sentences: Sequence[Sequence[str]]) -> np.ndarray:
    return np.asarray([-2.0 if sentence[-1] == "is" else -7.0 for sentence in sentences])

  assert _measured(probes.MinimalPairs(PAIRS, "planted"), likelihoods=likes_is) == {"mlm": 0.75}
  swapped = probes.MinimalPairs([MinimalPair(pair.bad, pair.good) for pair in PAIRS], "planted")
  assert _measured(swapped, likelihoods=likes_is) == {"mlm": 0.25}
  undecided = _measured(
    probes.MinimalPairs(PAIRS, "planted"), likelihoods=likes_is, originality=lambda side: np.zeros(len(side))
  )
  assert undecided == {"mlm": 0.75, "rtd": 0.5}
  assert _measured(probes.MinimalPairs(PAIRS, "planted")) == {}


def test_without_a_model_the_other_pairs_of_two_forms_decide():
  # Of each pair with 'is' two others have it right and one has it wrong; the last has none on its side.
  assert probes.MinimalPairs(PAIRS, "planted").without_model() == [
    Figure("minimal pairs", "planted", "accuracy", WITHOUT, 0.75, 4)
  ]
  assert probes.MinimalPairs(PAIRS[:1], "planted").without_model()[0].value == 0.5


def test_standard_errors_are_those_of_a_share_and_of_a_correlation():
  assert Figure("p", "c", "accuracy", "last", 0.2, 100).standard_error == pytest.approx(0.04)
  assert Figure("p", "c", "Spearman", "cls", 0.6, 65).standard_error == pytest.approx(0.64 / 8)
