"""Probes: questions to a frozen encoder, each beside what answers without any model are worth."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from data.annotated import MinimalPair, Relation, Sentence
from data.glue.tasks import Split
from lab.analysis import linear
from lab.analysis.words import DEPTHS, FrozenEncoder

CERTAIN = 0.9  # a word form is ambiguous if less than this share of its occurrences has its commonest tag
WITHOUT = "no model"


class Figure(NamedTuple):
  """One number of a probe."""

  probe: str
  cases: str  # which of them
  measure: str  # 'accuracy' or 'Spearman'
  read: str  # from which vectors: a depth, 'cls', 'mean', or by which head
  value: float
  count: int  # cases it is a mean over

  @property
  def standard_error(self) -> float:
    """The standard error of a mean over independent cases; of a correlation approximately."""
    if self.measure == "accuracy":
      return math.sqrt(max(self.value * (1 - self.value), 0.0) / max(self.count, 1))
    return (1 - self.value**2) / math.sqrt(max(self.count - 1, 1))


class Probe(Protocol):
  """A question with its cases, read and kept once for all models."""

  name: str
  about: str  # a sentence for the report

  def without_model(self) -> list[Figure]:
    """Scores of answers that need no model."""
    ...

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Scores of an encoder."""
    ...


def _share(right: np.ndarray) -> float:
  return float(np.mean(right)) if len(right) else float("nan")


@dataclasses.dataclass(frozen=True)
class PartOfSpeech:
  """The tag of a word, from its vector alone."""

  train: Sequence[Sentence]
  test: Sequence[Sentence]
  name = "part of speech"
  about = (
    "part of speech: UPOS of every word; ambiguous: forms whose commonest tag is below 90 % in training; "
    "unseen: forms that training lacks"
  )

  def _cases(self) -> dict[str, np.ndarray]:
    """{cases: [test words] bool}."""
    tags: dict[str, Counter] = {}
    for sentence in self.train:
      for word, tag in zip(sentence.words, sentence.tags):
        tags.setdefault(word.lower(), Counter())[tag] += 1
    sure = {word: counts.most_common(1)[0][1] / counts.total() for word, counts in tags.items()}
    shares = np.asarray([sure.get(word.lower(), -1.0) for s in self.test for word in s.words])
    every = np.ones(len(shares), bool)
    return {"all words": every, "ambiguous": (shares >= 0) & (shares < CERTAIN), "unseen": shares < 0}

  def _figures(self, answers: np.ndarray, read: str) -> Iterator[Figure]:
    right = answers == np.asarray(_all_of(self.test, "tags"))
    for cases, chosen in self._cases().items():
      yield Figure(self.name, cases, "accuracy", read, _share(right[chosen]), int(chosen.sum()))

  def without_model(self) -> list[Figure]:
    """The commonest tag of each form."""
    forms = ([word.lower() for word in _all_of(part, "words")] for part in (self.train, self.test))
    train, test = forms
    return list(self._figures(linear.commonest_answers(train, _all_of(self.train, "tags"), test), WITHOUT))

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Scores a classifier on the vectors of every depth."""
    train, test = (np.concatenate(encoder.words([s.words for s in part])) for part in (self.train, self.test))
    for depth, read in enumerate(DEPTHS):
      answers = linear.predictions(train[:, depth], _all_of(self.train, "tags"), test[:, depth])
      yield from self._figures(answers, read)


def _all_of(sentences: Sequence[Sentence], field: str) -> list[str]:
  return list(itertools.chain.from_iterable(getattr(sentence, field) for sentence in sentences))


@dataclasses.dataclass(frozen=True)
class Dependencies:
  """What a word is to the word that it depends on, from the vectors of both."""

  train: Sequence[Sentence]
  test: Sequence[Sentence]
  name = "dependency"
  about = "dependency: the relation of a word to its head, both given (UD, without subtypes)"

  def _asked(self, sentences: Sequence[Sentence]) -> tuple[list[str], list[str]]:
    """Word forms and relations of all words but roots."""
    words = [
      (word.lower(), relation)
      for sentence in sentences
      for word, head, relation in zip(sentence.words, sentence.heads, sentence.relations)
      if head >= 0
    ]
    return [word for word, _ in words], [relation for _, relation in words]

  def _figure(self, answers: np.ndarray, read: str) -> Figure:
    _, gold = self._asked(self.test)
    return Figure(self.name, "all words", "accuracy", read, _share(answers == np.asarray(gold)), len(gold))

  def without_model(self) -> list[Figure]:
    """The commonest relation of each form."""
    (train, labels), (test, _) = self._asked(self.train), self._asked(self.test)
    return [self._figure(linear.commonest_answers(train, labels, test), WITHOUT)]

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Scores a classifier on the vectors of every depth."""
    _, labels = self._asked(self.train)
    train, test = (self._vectors(encoder, part) for part in (self.train, self.test))
    for depth, read in enumerate(DEPTHS):
      yield self._figure(linear.predictions(train[:, depth], labels, test[:, depth]), read)

  @staticmethod
  def _vectors(encoder: FrozenEncoder, sentences: Sequence[Sentence]) -> np.ndarray:
    """[words, depths, 2 embed] of a word and its head."""
    rows = []
    for sentence, vectors in zip(sentences, encoder.words([s.words for s in sentences])):
      heads = np.asarray(sentence.heads)
      rows.append(np.concatenate([vectors[heads >= 0], vectors[heads[heads >= 0]]], axis=-1))
    return np.concatenate(rows)


@dataclasses.dataclass(frozen=True)
class Relations:
  """What two marked nouns are to each other, from the vectors of both."""

  train: Sequence[Relation]
  test: Sequence[Relation]
  name = "relation"
  about = "relation: SemEval-2010 task 8, 19 directed relations between two marked spans; no model: the words"

  def _figure(self, answers: np.ndarray, read: str) -> Figure:
    gold = np.asarray([relation.label for relation in self.test])
    return Figure(self.name, "all pairs", "accuracy", read, _share(answers == gold), len(gold))

  def without_model(self) -> list[Figure]:
    """A bag of the words of both spans and of those between them."""
    bags = [[r.words[r.spans[0][0] : r.spans[1][1]] for r in part] for part in (self.train, self.test)]
    labels = [relation.label for relation in self.train]
    return [self._figure(linear.bag_predictions(bags[0], labels, bags[1]), WITHOUT)]

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Scores a classifier on the vectors of every depth."""
    labels = [relation.label for relation in self.train]
    train, test = (self._vectors(encoder, part) for part in (self.train, self.test))
    for depth, read in enumerate(DEPTHS):
      yield self._figure(linear.predictions(train[:, depth], labels, test[:, depth]), read)

  @staticmethod
  def _vectors(encoder: FrozenEncoder, relations: Sequence[Relation]) -> np.ndarray:
    """[pairs, depths, 2 embed]: means over both spans."""
    rows = []
    for relation, vectors in zip(relations, encoder.words([r.words for r in relations])):
      means = [vectors[first:behind].mean(axis=0) for first, behind in relation.spans]
      rows.append(np.concatenate(means, axis=-1))
    return np.stack(rows)


def _labels(split: Split) -> list[str]:
  assert split.labels is not None  # those of a training and a development set are always given
  return [str(label) for label in split.labels]


def sentence_vectors(encoder: FrozenEncoder, texts: Sequence[str]) -> dict[str, np.ndarray]:
  """{'cls', 'mean': [texts, embed]} of the last layer; the mean is that over the tokens."""
  return {name: given.vectors(given.inputs(texts)) for name, given in encoder.embedders.items()}


@dataclasses.dataclass(frozen=True)
class Sentiment:
  """Whether a sentence is praise, from one vector of it."""

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
    """Scores a bag of words."""
    bags = [[text.split() for text in split.first] for split in (self.train, self.test)]
    return [self._figure(linear.bag_predictions(bags[0], _labels(self.train), bags[1]), WITHOUT)]

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Scores a classifier on [CLS], and one on the mean of the tokens."""
    train, test = (sentence_vectors(encoder, split.first) for split in (self.train, self.test))
    for read, vectors in train.items():
      yield self._figure(linear.predictions(vectors, _labels(self.train), test[read]), read)


@dataclasses.dataclass(frozen=True)
class Similarity:
  """How like two sentences are, by the cosine of their vectors; nothing is trained."""

  cases: str
  pairs: Split
  name = "similarity"
  about = "similarity: cosines of two sentences against people's scores; no model: tf-idf of words"

  def _figure(self, cosines: np.ndarray, read: str) -> Figure:
    value = linear.rank_correlation(cosines, np.asarray(_labels(self.pairs), np.float64))
    return Figure(self.name, self.cases, "Spearman", read, value, len(cosines))

  def without_model(self) -> list[Figure]:
    """Cosines of bags of words."""
    return [self._figure(linear.bag_cosines(self.pairs.first, self.pairs.second or ()), WITHOUT)]

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Compares the cosines of [CLS], and those of the means of the tokens, with the people's scores."""
    first, second = (sentence_vectors(encoder, side) for side in (self.pairs.first, self.pairs.second or ()))
    for read, vectors in first.items():
      yield self._figure(linear.cosines(vectors, second[read]), read)


@dataclasses.dataclass(frozen=True)
class MinimalPairs:
  """Which of two sentences is grammatical, by what the pretraining heads say of them; nothing is trained."""

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
    """The form that is right more often in the other pairs with the same two forms; a guess where none is."""
    counts: Counter = Counter(_forms(pair) for pair in self.pairs)
    values = []
    for pair in self.pairs:
      good, bad = _forms(pair)
      often, seldom = counts[good, bad] - 1, counts[bad, good]
      values.append(0.5 + 0.5 * float(np.sign(often - seldom)))
    return [Figure(self.name, self.cases, "accuracy", WITHOUT, float(np.mean(values)), len(values))]

  def measure(self, encoder: FrozenEncoder) -> Iterator[Figure]:
    """Asks every pretraining head that the checkpoint has."""
    sides = [pair.good for pair in self.pairs], [pair.bad for pair in self.pairs]
    for read, score in (("mlm", encoder.likelihoods), ("rtd", encoder.originality)):
      good, bad = (score(side) for side in sides)
      if good is not None and bad is not None:
        yield self._figure(good, bad, read)


def _forms(pair: MinimalPair) -> tuple[str, str]:
  """The words in which the sentences of a pair differ, each as one text."""
  differ = [
    (good, bad) for good, bad in itertools.zip_longest(pair.good, pair.bad, fillvalue="") if good != bad
  ]
  return " ".join(good for good, _ in differ), " ".join(bad for _, bad in differ)
