"""Linear probes, of spans too, and probes of a stand-in encoder whose vectors and scores are planted."""

import types
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from data.annotated import MinimalPair, Relation, Sentence
from data.glue.tasks import Split
from lab.analysis import edges, probes
from lab.analysis.probes import WITHOUT, Annotated, Figure, Probe, Target, Task

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


def _dependency(train: Sequence[Sentence], test: Sequence[Sentence]) -> probes.SpanProbe:
  return probes.dependency(Task("dependency", *([*map(probes.dependencies, part)] for part in (train, test))))


def _tags(train: Sequence[Sentence], test: Sequence[Sentence]) -> probes.SpanProbe:
  return probes.part_of_speech(Task("part of speech", *([*map(probes.tags, part)] for part in (train, test))))


def test_a_relation_is_read_off_a_word_and_its_own_head():
  train, test = ([_sentence() for _ in range(number)] for number in (200, 100))
  probe = _dependency(train, test)
  found = _measured(probe)
  assert found["tokens"] == found["last"] == 1.0
  assert found["middle"] == pytest.approx(0.25, abs=CHANCE)
  (trivial,) = probe.without_model()  # the word tells its half of the relation
  assert trivial.value == pytest.approx(0.5, abs=CHANCE) and trivial.count == 500


def test_the_tag_of_a_word_and_the_relation_of_two_spans_are_read_off_their_vectors():
  train, test = ([_sentence() for _ in range(100)] for _ in range(2))
  found = {(figure.cases, figure.read): figure for figure in _tags(train, test).measure(_frozen())}
  assert found["all words", "tokens"].value == found["all words", "last"].value == 1.0
  assert found["all words", "middle"].value == pytest.approx(0.25, abs=CHANCE)
  assert found["ambiguous", "last"].count == found["unseen", "last"].count == 0

  def relation() -> Relation:
    words = tuple(RNG.choice([*WORDS], 6))
    first, second = words[1] in "ab", words[4] in "ac"
    return Relation(words, ((1, 2), (4, 5)), f"{first} {second}")

  marked = ([probes.marked_spans(relation()) for _ in range(200)] for _ in range(2))
  of_spans = _measured(probes.relation(Task("relation", *marked)))
  assert of_spans["tokens"] == of_spans["last"] == 1.0
  assert of_spans["middle"] == pytest.approx(0.25, abs=CHANCE)


def test_words_are_ambiguous_by_their_tags_in_training_and_unseen_without_any():
  def tagged(words: str, *tags: str) -> Sentence:
    return Sentence(tuple(words), tags, (-1,) * len(words), ("root",) * len(words))

  train = [tagged("aab", "X", "Y", "X")] + [tagged("b", "X")] * 18 + [tagged("bc", "Y", "Z")]
  probe = _tags(train, [tagged("Abd", "Y", "X", "Z"), tagged("ac", "X", "X")])
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


def test_a_probe_of_one_hot_features_is_perfect_and_of_noise_at_chance():
  random = np.random.default_rng(0)
  labels = random.integers(0, 4, 2_000).astype(str)
  one_hot = np.eye(4)[labels.astype(int)]
  train, test = slice(0, 1_000), slice(1_000, 2_000)
  assert (probes.predictions(one_hot[train], labels[train], one_hot[test]) == labels[test]).all()
  noise = random.normal(size=(2_000, 5))
  right = (probes.predictions(noise[train], labels[train], noise[test]) == labels[test]).mean()
  assert abs(right - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 1_000)
  bags = [["good", "film"], ["Film", "good"], ["bad", "film"], ["film", "bad"]]
  found = probes.bag_predictions(bags, ["1", "1", "0", "0"], [["the", "GOOD"], ["bad", "bad"]])
  assert found.tolist() == ["1", "0"]  # words and no order
  words, labels = ["a", "a", "a", "b", "c", "d", "e"], ["x", "y", "x", "n", "n", "n", "z"]
  assert probes.commonest_answers(words, labels, ["a", "e", "unseen"]).tolist() == ["x", "z", "n"]


def test_cosines_and_rank_correlation_by_hand():
  first = np.asarray([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0], [3.0, 4.0]])
  second = np.asarray([[2.0, 0.0], [4.0, -3.0], [1, 1], [8, 6]])
  np.testing.assert_allclose(probes.cosines(first, second), [1.0, 0.0, 0.0, 0.96], atol=1e-12)
  assert probes.rank_correlation(np.asarray([1.0, 5.0, 7.0]), np.asarray([0.1, 0.2, 9.0])) == 1.0
  same, other = probes.bag_cosines(["a b", "a b"], ["b a", "c d"])
  assert abs(same - 1) < 1e-12 and other == 0


def test_labels_that_are_all_the_same_are_answered_without_a_warning():
  train = np.asarray([[1.0, 0.0], [0.0, 1.0]] * 2)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for labels in ([("x",)] * 4, [()] * 4, [("x", "y")] * 4, [("x",), ()] * 2, [("x",), ("y",)] * 2):
      assert edges.predictions(train, labels, train[:2]) == labels[:2]
    assert probes.bag_predictions([[], ["ba"]], ["b", "b"], [["ba"]]).tolist() == ["b"]
    assert np.isnan(probes.rank_correlation(np.arange(3.0), np.ones(3)))
    assert np.isnan(probes.rank_correlation(np.ones(3), np.arange(3.0)))


def test_a_span_is_the_mean_of_its_words_and_two_are_joined():
  states = np.asarray([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])[..., None]  # of three words after two layers
  part = [
    Annotated(("a", "b", "c"), (Target(((0, 2),), ("x",)),)),
    Annotated(("d", "e", "f"), (Target(((1, 2),), ("y", "z")),)),
  ]
  found = probes.vectors(lambda sentences: [states for _ in sentences], part)
  np.testing.assert_array_equal(found, [[[2.0], [20.0]], [[3.0], [30.0]]])
  assert probes.labels(part) == [("x",), ("y", "z")]
  two = [Annotated(("a", "b", "c"), (Target(((2, 3), (0, 2)), ("x",)),))]
  np.testing.assert_array_equal(probes.vectors(lambda _: [states], two), [[[8.0, 2.0], [80.0, 20.0]]])
  gold = [("a",), ("b", "c")]
  assert edges.f1(gold, gold) == 1.0 and edges.f1(gold, [("x",), ()]) == 0.0
  # Two of four predicted labels are right, and the text has three.
  assert edges.f1(gold, [("a", "b", "c"), ("b",)]) == pytest.approx(4 / 7)
