"""Probes of a frozen encoder, each with a baseline without a model."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from data.annotated import MinimalPair
from data.glue.tasks import Split
from lab.analysis import linear, spans
from lab.analysis.spans import Annotated, Task

if TYPE_CHECKING:
  from lab.analysis.words import FrozenEncoder  # imports JAX, which the names of the probes do not need

DEPTHS = ("tokens", "middle", "last")  # rows of the token table; after half of the layers; after all
CERTAIN = 0.9  # a word form is ambiguous if its most frequent tag has a smaller share than this
WITHOUT = "no model"


class Figure(NamedTuple):
  """One score of a model or baseline: probe, subset of cases, measure, value and number of cases."""

  probe: str
  cases: str  # the subset of cases
  measure: str  # 'accuracy' or 'Spearman'
  read: str  # the vectors (a depth, 'cls' or 'mean') or the head
  value: float
  count: int  # number of cases

  @property
  def standard_error(self) -> float:
    """The standard error, for independent cases; approximate for a correlation."""
    if self.measure == "accuracy":
      return math.sqrt(max(self.value * (1 - self.value), 0.0) / max(self.count, 1))
    return (1 - self.value**2) / math.sqrt(max(self.count - 1, 1))


class Probe(Protocol):
  """A test of frozen encoders on annotated sentences: scores each encoder, and a baseline without one."""

  @property
  def name(self) -> str:
    """The probe's name in tables."""
    ...

  @property
  def about(self) -> str:
    """Returns a sentence for the report's notes that says what the probe measures."""
    ...

  def without_model(self) -> list[Figure]:
    """Returns the scores of the baseline without a model."""
    ...

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the scores of an encoder."""
    ...


def _share(right: np.ndarray) -> float:
  return float(np.mean(right)) if len(right) else float("nan")


@dataclasses.dataclass(frozen=True)
class SpanProbe:
  """Predicts the label of a word, or of two spans, from their vectors only."""

  name: str
  about: str
  train: Sequence[Annotated]
  test: Sequence[Annotated]
  groups: Mapping[str, np.ndarray]  # {cases: [test targets] bool}
  has_bag: bool = False  # baseline: a bag of the words from first to second span, else the first word's form

  def _figures(self, answers: np.ndarray, read: str) -> Iterator[Figure]:
    right = answers == np.asarray(_single(self.test))
    for cases, chosen in self.groups.items():
      yield Figure(self.name, cases, "accuracy", read, _share(right[chosen]), int(chosen.sum()))

  def without_model(self) -> list[Figure]:
    """Scores a baseline: each word's most frequent training label, or with `has_bag` a bag of words."""
    labels, parts = _single(self.train), (self.train, self.test)
    if self.has_bag:
      train, test = (
        [words[target.spans[0][0] : target.spans[1][1]] for words, targets in part for target in targets]
        for part in parts
      )
      answers = linear.bag_predictions(train, labels, test)
    else:
      train, test = (_forms(part) for part in parts)
      answers = linear.commonest_answers(train, labels, test)
    return list(self._figures(answers, WITHOUT))

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the accuracy of a classifier on the encoder's vectors, for each of its `DEPTHS`."""
    train, test = (spans.vectors(encoder.words, part) for part in (self.train, self.test))
    for depth, read in enumerate(DEPTHS):
      yield from self._figures(linear.predictions(train[:, depth], _single(self.train), test[:, depth]), read)


def part_of_speech(task: Task) -> SpanProbe:
  """Returns the probe of a word's part of speech."""
  tags: dict[str, Counter] = {}
  for form, tag in zip(_forms(task.train), _single(task.train)):
    tags.setdefault(form, Counter())[tag] += 1
  sure = {form: counts.most_common(1)[0][1] / counts.total() for form, counts in tags.items()}
  shares = np.asarray([sure.get(form, -1.0) for form in _forms(task.test)])
  groups = {"all words": shares >= -1, "ambiguous": (shares >= 0) & (shares < CERTAIN), "unseen": shares < 0}
  about = (
    "part of speech: UPOS of every word; ambiguous: forms whose most frequent tag is below 90 % in training; "
    "unseen: forms that are not in training"
  )
  return SpanProbe(about=about, groups=groups, **task._asdict())


def dependency(task: Task) -> SpanProbe:
  """Returns the probe of the dependency relation between a word and its head."""
  about = "dependency: the relation of a word to its head, both given (UD, without subtypes)"
  groups = {"all words": np.ones(len(_single(task.test)), bool)}
  return SpanProbe(about=about, groups=groups, **task._asdict())


def relation(task: Task) -> SpanProbe:
  """Returns the probe of the relation between two marked spans."""
  about = "relation: SemEval-2010 task 8, 19 directed relations between two marked spans; no model: the words"
  groups = {"all pairs": np.ones(len(task.test), bool)}
  return SpanProbe(about=about, groups=groups, has_bag=True, **task._asdict())


def _single(part: Sequence[Annotated]) -> list[str]:
  return [label for (label,) in spans.labels(part)]


def _forms(part: Sequence[Annotated]) -> list[str]:
  return [words[target.spans[0][0]].lower() for words, targets in part for target in targets]


def _labels(split: Split) -> list[str]:
  assert split.labels is not None  # training and development sets always have labels
  return [str(label) for label in split.labels]


def sentence_vectors(encoder: "FrozenEncoder", texts: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns {'cls', 'mean': [texts, embed]}, vectors of the last layer; 'mean' is over tokens."""
  return {name: given.vectors(given.inputs(texts)) for name, given in encoder.embedders.items()}


@dataclasses.dataclass(frozen=True)
class Sentiment:
  """Predicts the sentiment of a sentence from one vector."""

  cases: str
  train: Split
  test: Split
  name = "sentiment"
  about = (
    "sentiment: SST-2 by logistic regression on one vector of a sentence, from 5,000 training sentences or "
    "from as many as are named; no model: a bag of words"
  )

  def _figure(self, answers: np.ndarray, read: str) -> Figure:
    right = answers == np.asarray(_labels(self.test))
    return Figure(self.name, self.cases, "accuracy", read, _share(right), len(right))

  def without_model(self) -> list[Figure]:
    """Returns the accuracy of logistic regression on bags of words, the baseline."""
    bags = [[text.split() for text in split.first] for split in (self.train, self.test)]
    return [self._figure(linear.bag_predictions(bags[0], _labels(self.train), bags[1]), WITHOUT)]

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the accuracy of a classifier on [CLS], and of one on the mean of the tokens."""
    train, test = (sentence_vectors(encoder, split.first) for split in (self.train, self.test))
    for read, vectors in train.items():
      yield self._figure(linear.predictions(vectors, _labels(self.train), test[read]), read)


@dataclasses.dataclass(frozen=True)
class Similarity:
  """Correlates cosines of two sentences' vectors with human similarity scores; nothing is trained."""

  cases: str
  pairs: Split
  name = "similarity"
  about = "similarity: cosines of two sentences against human scores; no model: tf-idf of words"

  def _figure(self, cosines: np.ndarray, read: str) -> Figure:
    value = linear.rank_correlation(cosines, np.asarray(_labels(self.pairs), np.float64))
    return Figure(self.name, self.cases, "Spearman", read, value, len(cosines))

  def without_model(self) -> list[Figure]:
    """Returns the baseline: how cosines of tf-idf bags of words correlate with human scores."""
    return [self._figure(linear.bag_cosines(self.pairs.first, self.pairs.second or ()), WITHOUT)]

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the correlations of cosines of [CLS], and of the means of the tokens."""
    first, second = (sentence_vectors(encoder, side) for side in (self.pairs.first, self.pairs.second or ()))
    for read, vectors in first.items():
      yield self._figure(linear.cosines(vectors, second[read]), read)


@dataclasses.dataclass(frozen=True)
class MinimalPairs:
  """Chooses the grammatical one of two sentences by the pretraining heads; nothing is trained."""

  pairs: Sequence[MinimalPair]
  cases: str
  name = "minimal pairs"
  about = (
    "minimal pairs: how often the grammatical sentence is the likelier one, by masking each token in turn "
    "(mlm) or by the probability that every token is original (rtd); no model: the form that is right more "
    "often elsewhere in the set"
  )

  def _figure(self, good: np.ndarray, bad: np.ndarray, read: str) -> Figure:
    right = (good > bad) + 0.5 * (good == bad)
    return Figure(self.name, self.cases, "accuracy", read, _share(right), len(right))

  def without_model(self) -> list[Figure]:
    """Scores a baseline: the word form that is right more often in the other pairs, else a guess."""
    counts: Counter = Counter(_differing(pair) for pair in self.pairs)
    values = []
    for pair in self.pairs:
      good, bad = _differing(pair)
      often, seldom = counts[good, bad] - 1, counts[bad, good]
      values.append(0.5 + 0.5 * float(np.sign(often - seldom)))
    return [Figure(self.name, self.cases, "accuracy", WITHOUT, float(np.mean(values)), len(values))]

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the accuracy of every pretraining head of the checkpoint."""
    sides = [pair.good for pair in self.pairs], [pair.bad for pair in self.pairs]
    for read, score in (("mlm", encoder.likelihoods), ("rtd", encoder.originality)):
      good, bad = (score(side) for side in sides)
      if good is not None and bad is not None:
        yield self._figure(good, bad, read)


def _differing(pair: MinimalPair) -> tuple[str, str]:
  differ = [
    (good, bad) for good, bad in itertools.zip_longest(pair.good, pair.bad, fillvalue="") if good != bad
  ]
  return " ".join(good for good, _ in differ), " ".join(bad for _, bad in differ)
