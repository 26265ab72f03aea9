"""Probes of a frozen encoder, each with a baseline without a model.

The file has annotated sentences with their targets, then linear classifiers, cosines and bags of words, then
the probes, which use both.
"""

import dataclasses
import itertools
import math
import pathlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from data import annotated
from data.annotated import MinimalPair
from data.errors import DataError
from data.glue.tasks import Split
from data.rows.values import Target

if TYPE_CHECKING:  # it imports JAX, which the names of the probes do not need
  from lab.analysis.frozen_encoder import FrozenEncoder

DEPTHS = ("tokens", "middle", "last")  # rows of the token table; after half of the layers; after all
CERTAIN = 0.9  # a word form is ambiguous if its most frequent tag has a smaller share than this
WITHOUT = "no model"
MOST_ROWS = 20_000  # for training; more rows take minutes and hardly improve a linear probe

States = Callable[[Sequence[Sequence[str]]], list[np.ndarray]]  # sentences -> [words, layers, width] of each


class Annotated(NamedTuple):
  """A sentence as words, and its targets: labelled words, spans or pairs of spans."""

  words: tuple[str, ...]
  targets: tuple[Target, ...]


class Task(NamedTuple):
  """A probing task: its name, and its annotated sentences for training and for test."""

  name: str
  train: Sequence[Annotated]
  test: Sequence[Annotated]


def task(name: str, files: Sequence[pathlib.Path], parts: Sequence[Sequence[Annotated]]) -> Task:
  """Makes a `Task` of a training and a test part; DataError, with its file, if one has no target."""
  for path, part in zip(files, parts):
    if not any(sentence.targets for sentence in part):
      raise DataError(
        f"{path}: no target of the task {name!r} in its first {len(part):,} sentences, expected at least "
        "one; correct the file, train on more sentences or remove the task's files"
      )
  return Task(name, *parts)


def tags(sentence: annotated.Sentence) -> Annotated:
  """Makes a part-of-speech target of every word of a sentence; its label is the tag."""
  found = (Target(((at, at + 1),), (tag,)) for at, tag in enumerate(sentence.tags))
  return Annotated(sentence.words, tuple(found))


def dependencies(sentence: annotated.Sentence) -> Annotated:
  """Makes a target of every word and its head, except the root; its label is their relation."""
  targets = (
    Target(((at, at + 1), (head, head + 1)), (relation,))
    for at, (head, relation) in enumerate(zip(sentence.heads, sentence.relations))
    if head >= 0
  )
  return Annotated(sentence.words, tuple(targets))


def marked_spans(marked: annotated.Relation) -> Annotated:
  """Makes one target of a sentence's two marked spans; its label is their relation."""
  return Annotated(marked.words, (Target(marked.spans, (marked.label,)),))


def labels(part: Sequence[Annotated]) -> list[tuple[str, ...]]:
  """Returns the labels of each target, in the order of `vectors`."""
  return [target.labels for sentence in part for target in sentence.targets]


def vectors(states: States, part: Sequence[Annotated]) -> np.ndarray:
  """Returns each target's vectors, [targets, layers, width or 2 width]: its one or two spans' means."""
  rows = []
  for sentence, of_words in zip(part, states([one.words for one in part])):
    for target in sentence.targets:
      means = [of_words[first:behind].mean(axis=0) for first, behind in target.spans]
      rows.append(np.concatenate(means, axis=-1))
  return np.stack(rows)


def predictions(train: np.ndarray, labels: Sequence[str], test: np.ndarray) -> np.ndarray:
  """Predicts labels of `test` [n, features] by logistic regression on `train` [m, features].

  At most `MOST_ROWS` rows train. Features are standardised, the penalty is scikit-learn's default (C = 1),
  and nothing is tuned on `test`. If all labels are equal, that label is predicted.
  """
  known = np.asarray(labels)[:MOST_ROWS]
  if (known == known[0]).all():
    return np.full(len(test), known[0])
  from sklearn.exceptions import ConvergenceWarning  # here: a second to import
  from sklearn.linear_model import LogisticRegression
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler

  model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=100))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # 100 steps by definition; more change little
    model.fit(train[:MOST_ROWS], known)
  return model.predict(test)


def bag_predictions(
  train: Sequence[Sequence[str]], labels: Sequence[str], test: Sequence[Sequence[str]]
) -> np.ndarray:
  """Predicts labels of `test` by logistic regression on bags of words, a baseline without a model.

  If all labels are equal, that label is predicted.
  """
  if len(set(labels)) == 1:
    return np.full(len(test), labels[0])
  from sklearn.feature_extraction.text import CountVectorizer
  from sklearn.linear_model import LogisticRegression

  counted = CountVectorizer(token_pattern=r"\S+", binary=True)  # lower case
  seen = counted.fit_transform(" ".join(words) for words in train)
  model = LogisticRegression(max_iter=200).fit(seen, np.asarray(labels))
  return model.predict(counted.transform(" ".join(words) for words in test))


def commonest_answers(train: Sequence[str], labels: Sequence[str], test: Sequence[str]) -> np.ndarray:
  """Predicts each word's most frequent training label; for unseen words, that of words seen once."""
  of_word: dict[str, Counter] = {}
  for word, label in zip(train, labels, strict=True):
    of_word.setdefault(word, Counter())[label] += 1
  once = Counter(label for counts in of_word.values() if counts.total() == 1 for label in counts)
  rare = (once or Counter(labels)).most_common(1)[0][0]
  return np.asarray([of_word[word].most_common(1)[0][0] if word in of_word else rare for word in test])


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns the cosines of the rows of two arrays [n, width]; 0 if a row is zero."""
  sizes = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
  return np.einsum("nw,nw->n", first, second) / np.where(sizes > 0, sizes, 1.0)


def bag_cosines(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
  """Returns the cosines of tf-idf bags of words of two lists of texts."""
  from sklearn.feature_extraction.text import TfidfVectorizer

  vectors = TfidfVectorizer(token_pattern=r"\S+").fit_transform([*first, *second])
  return np.asarray(vectors[: len(first)].multiply(vectors[len(first) :]).sum(axis=1)).ravel()


def rank_correlation(values: np.ndarray, gold: np.ndarray) -> float:
  """Returns Spearman's correlation; NaN if all values or all gold scores are equal."""
  from scipy.stats import spearmanr

  return float(spearmanr(values, gold)[0]) if np.ptp(values) and np.ptp(gold) else float("nan")


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
      answers = bag_predictions(train, labels, test)
    else:
      train, test = (_forms(part) for part in parts)
      answers = commonest_answers(train, labels, test)
    return list(self._figures(answers, WITHOUT))

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the accuracy of a classifier on the encoder's vectors, for each of its `DEPTHS`."""
    train, test = (vectors(encoder.words, part) for part in (self.train, self.test))
    for depth, read in enumerate(DEPTHS):
      yield from self._figures(predictions(train[:, depth], _single(self.train), test[:, depth]), read)


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
  return [label for (label,) in labels(part)]


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
    return [self._figure(bag_predictions(bags[0], _labels(self.train), bags[1]), WITHOUT)]

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the accuracy of a classifier on [CLS], and of one on the mean of the tokens."""
    train, test = (sentence_vectors(encoder, split.first) for split in (self.train, self.test))
    for read, vectors in train.items():
      yield self._figure(predictions(vectors, _labels(self.train), test[read]), read)


@dataclasses.dataclass(frozen=True)
class Similarity:
  """Correlates cosines of two sentences' vectors with human similarity scores; nothing is trained."""

  cases: str
  pairs: Split
  name = "similarity"
  about = "similarity: cosines of two sentences against human scores; no model: tf-idf of words"

  def _figure(self, cosines: np.ndarray, read: str) -> Figure:
    value = rank_correlation(cosines, np.asarray(_labels(self.pairs), np.float64))
    return Figure(self.name, self.cases, "Spearman", read, value, len(cosines))

  def without_model(self) -> list[Figure]:
    """Returns the baseline: how cosines of tf-idf bags of words correlate with human scores."""
    return [self._figure(bag_cosines(self.pairs.first, self.pairs.second or ()), WITHOUT)]

  def measure(self, encoder: "FrozenEncoder") -> Iterator[Figure]:
    """Yields the correlations of cosines of [CLS], and of the means of the tokens."""
    first, second = (sentence_vectors(encoder, side) for side in (self.pairs.first, self.pairs.second or ()))
    for read, vectors in first.items():
      yield self._figure(cosines(vectors, second[read]), read)


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
